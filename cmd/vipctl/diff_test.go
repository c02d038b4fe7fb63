package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// TestDiffRemovedServices compares files with running services that they don't define. A service
// may count as removed only if the daemon read it from one of these files.
func TestDiffRemovedServices(t *testing.T) {
	dir := t.TempDir()
	services := filepath.Join(dir, "services.d")
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	main := filepath.Join(dir, "vipd.toml")
	write(main, "[store]\npath = \"services.d\"\n")
	write(filepath.Join(services, "a.toml"), "[services.a]\nvips = [\"10.0.0.1\"]\nports = [{ port = 80 }]\n")
	runs := func(name balancer.Name, file string) api.Service {
		return api.Service{Name: name, Origin: balancer.Origin{File: file}}
	}
	running := []api.Service{
		runs("in-main", main), runs("in-file", filepath.Join(services, "a.toml")),
		runs("in-folder", filepath.Join(services, "deleted.toml")), runs("elsewhere", filepath.Join(dir, "other", "x.toml")),
	}
	added := serviceDiff{Service: "a", What: "added"}
	removed := func(names ...balancer.Name) []serviceDiff {
		all := []serviceDiff{added}
		for _, n := range names {
			all = append(all, serviceDiff{Service: n, What: "removed"})
		}
		return all
	}
	for place, want := range map[string][]serviceDiff{
		main:                              removed("in-file", "in-folder", "in-main"),
		services:                          removed("in-file", "in-folder"),
		filepath.Join(services, "a.toml"): removed("in-file"),
	} {
		d, err := readDefinitions(place)
		if err != nil {
			t.Fatal(err)
		}
		got, err := compare(running, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("differences from %s (-want +got):\n%s", place, diff)
		}
	}
}

// TestDiffOmitsInvalidServices compares a file with the running services. Both services in the file
// are invalid, and one of them is running. Neither may count as a difference, because the daemon
// would ignore both definitions.
func TestDiffOmitsInvalidServices(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.toml")
	if err := os.WriteFile(file, []byte("[services.web]\nvips = []\n[services.new]\nvips = [1]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := readDefinitions(file)
	if err != nil {
		t.Fatal(err)
	}
	bad, err := d.unusable()
	if err != nil || len(bad) != 2 {
		t.Fatalf("unusable services = %d, error = %v, want 2 and no error", len(bad), err)
	}
	got, err := compare([]api.Service{{Name: "web", Origin: balancer.Origin{File: file}}}, d, bad)
	if err != nil || len(got) != 0 {
		t.Errorf("differences = %v, error = %v, want no difference and no error", got, err)
	}
}
