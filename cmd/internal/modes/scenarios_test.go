package modes_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/store/tomlfile"
)

var update = flag.Bool("update", false, "rewrite the expected results of the scenarios")

// folder contains a directory for each scenario, with the file services.toml and, for each mode,
// MODE.frontends.want (the compiled frontends and problems) and MODE.want (the mode's rules in
// their native syntax). The node is n1 in zone z1 and has the addresses 192.168.1.1, 192.168.2.1
// and fd00:1::1.
const folder = "../../../balancer/testdata/scenarios"

// TestScenarios compiles and renders each scenario in each mode. The results must equal the files
// in the scenario's directory, which this command rewrites:
//
//	go test ./cmd/internal/modes -update    rewrites the files; look at the difference before you commit it
func TestScenarios(t *testing.T) {
	cases, err := filepath.Glob(folder + "/*/services.toml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("scenarios in %s = none, error = %v, want at least one", folder, err)
	}
	for _, file := range cases {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			loaded := tomlfile.Load(file)
			for _, p := range loaded.Snapshot.Problems {
				t.Error("problem in the scenario, want none:", p)
			}
			conf := config.Default()
			own := []netip.Addr{netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("192.168.2.1"), netip.MustParseAddr("fd00:1::1")}
			for _, m := range modes.All() {
				env := balancer.Env{Node: "n1", Zone: "z1", Capabilities: m.Capabilities(), Local: own, NodePortAddresses: own}
				d := new(balancer.Compiler).Next(env, balancer.Inputs{Services: loaded.Snapshot.Services}, time.Now())
				compare(t, filepath.Join(dir, string(m.Name)+".frontends.want"), write(d, dir))
				var frontends []*balancer.Frontend
				for _, f := range d.Frontends.All() {
					frontends = append(frontends, f)
				}
				compare(t, filepath.Join(dir, string(m.Name)+".want"), m.Render(conf, frontends))
			}
		})
	}
}

// write formats the compiled state as a line for each frontend, backend, address and problem.
func write(d balancer.Desired, dir string) string {
	var b strings.Builder
	for key, f := range d.Frontends.All() {
		fmt.Fprintf(&b, "%s %s", key, f.Service)
		if f.Port != "" {
			fmt.Fprintf(&b, " port %s", f.Port)
		}
		if f.NodePort {
			b.WriteString(" node-port")
		}
		fmt.Fprintf(&b, " %s snat %s %s none: %s drain %s", f.Scheduler, f.SNAT, f.Forward, f.NoEndpoints, f.DrainTimeout)
		if f.AffinityTimeout > 0 {
			fmt.Fprintf(&b, " affinity %s", f.AffinityTimeout)
		}
		if f.AffinityScope != "" || f.AffinityPrefix > 0 {
			fmt.Fprintf(&b, " scope %s prefix %d foreign %v", f.AffinityScope, f.AffinityPrefix, f.Foreign)
		}
		if !f.Limits.IsZero() {
			fmt.Fprintf(&b, " limits (%s)", f.Limits)
		}
		fmt.Fprintf(&b, " connect %s idle %s proxy %s", f.ConnectTimeout, f.IdleTimeout, f.ProxyProtocol)
		if len(f.Sources) > 0 {
			fmt.Fprintf(&b, " from %v", f.Sources)
		}
		b.WriteByte('\n')
		for _, e := range f.Backends {
			fmt.Fprintf(&b, "\t%s %s weight %d", e.Addr, e.State, e.Weight)
			if e.MaxConnections > 0 {
				fmt.Fprintf(&b, " at most %d", e.MaxConnections)
			}
			b.WriteByte('\n')
		}
	}
	for a, n := range d.Addresses.All() {
		fmt.Fprintf(&b, "address %s, %d frontends\n", a, n)
	}
	for _, problems := range d.Problems.All() {
		for _, p := range *problems {
			fmt.Fprintf(&b, "%s: %s\n", p.Severity, strings.ReplaceAll(p.String(), dir+"/", ""))
		}
	}
	return b.String()
}

// compare compares got with the file's content. With -update, it writes got to the file instead.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", filepath.Base(file), d)
	}
}
