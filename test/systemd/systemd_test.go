package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vipd/test/lab"
	"vipd/test/program"
)

// TestUnit lets systemd look at the unit, with the programs where the unit expects them.
func TestUnit(t *testing.T) {
	lab.Need(t, "systemd-analyze")
	folder := t.TempDir()
	unit := strings.ReplaceAll(read(t, "../../systemd/vipd.service"), "/usr/local/bin/", program.Bin(t)+"/")
	file := filepath.Join(folder, "vipd.service")
	if err := os.WriteFile(file, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: got %v and\n%s\nwant no complaint", err, out)
	}
}

// TestEtcdUnits lets systemd look at the units of examples/etcd.
func TestEtcdUnits(t *testing.T) {
	lab.Need(t, "systemd-analyze", "etcd")
	folder := t.TempDir()
	var files []string
	for _, name := range []string{"etcd-proxy.service", "etcd-backup.service", "etcd-backup.timer"} {
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(read(t, "../../examples/etcd/"+name)), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, files...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: got %v and\n%s\nwant no complaint", err, out)
	}
}

// TestDefaultsLoad: the installed configuration is valid as it is, and also with every setting uncommented, so that
// no line of it is a trap for whoever removes its #.
func TestDefaultsLoad(t *testing.T) {
	text := read(t, "../../systemd/vipd.toml")
	setting := regexp.MustCompile(`(?m)^#([a-z_]+ = )`)
	if got := len(setting.FindAllString(text, -1)); got < 40 {
		t.Fatalf("found %d settings in the default configuration: the pattern no longer fits it", got)
	}
	service := strings.Index(text, "#[services.web]")
	if service < 0 {
		t.Fatal("the default configuration has no service to uncomment")
	}
	vipctl := filepath.Join(program.Bin(t), "vipctl")
	for name, variant := range map[string]string{
		"as installed": text,
		"uncommented":  setting.ReplaceAllString(text[:service], "$1"),
		"with service": text[:service] + strings.NewReplacer("#[", "[", "#vips", "vips", "#ports", "ports", "#endpoints", "endpoints", "#\t", "\t", "#]", "]").Replace(text[service:]),
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "vipd.toml")
			if err := os.WriteFile(file, []byte(variant), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(vipctl, "check", file).CombinedOutput(); err != nil {
				t.Errorf("vipctl check: %v\n%s\n%s", err, out, variant)
			}
		})
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
