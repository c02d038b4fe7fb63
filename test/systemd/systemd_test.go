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

// TestUnit runs systemd-analyze on the units, in a tree that contains the units' programs.
func TestUnit(t *testing.T) {
	lab.Need(t, "systemd-analyze")
	folder := t.TempDir()
	for _, name := range []string{"vipd.service", "vipd-owner.service"} {
		unit := strings.ReplaceAll(read(t, "../../systemd/"+name), "/usr/local/bin/", program.Bin(t)+"/")
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(unit), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify %s: error = %v, output =\n%s\nwant no warnings", name, err, out)
		}
	}
}

// TestEtcdUnits runs systemd-analyze on the units in examples/etcd.
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
		t.Errorf("systemd-analyze verify: error = %v, output =\n%s\nwant no warnings", err, out)
	}
}

// TestDefaultsLoad loads the installed configuration, unchanged and with every setting uncommented.
// Both variants must be valid, so a user can uncomment any line.
func TestDefaultsLoad(t *testing.T) {
	text := read(t, "../../systemd/vipd.toml")
	setting := regexp.MustCompile(`(?m)^#([a-z_]+ = )`)
	if got := len(setting.FindAllString(text, -1)); got < 40 {
		t.Fatalf("settings in the default configuration = %d, want more: the pattern may no longer match", got)
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

// TestExampleUnit runs systemd-analyze on the unit that keeps an endpoint registered.
func TestExampleUnit(t *testing.T) {
	lab.Need(t, "systemd-analyze")
	folder := t.TempDir()
	for name, text := range map[string]string{
		"vipctl-register@.service": read(t, "../../examples/systemd/vipctl-register@.service"), "web.service": "[Service]\nExecStart=/bin/true\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("systemd-analyze", "verify", "--man=no", filepath.Join(folder, "vipctl-register@web.service"))
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+folder+":")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: error = %v, output =\n%s\nwant no warnings", err, out)
	}
}

// TestExposure rates the units with "systemd-analyze security". Their exposure must be at most 3.1,
// where 10 means no sandbox.
func TestExposure(t *testing.T) {
	lab.Need(t, "systemd-analyze")
	for _, unit := range []string{"vipd.service", "vipd-owner.service"} {
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=31", "--no-pager", "../../systemd/"+unit).CombinedOutput()
		if err != nil {
			t.Errorf("systemd-analyze security %s: error = %v, output =\n%s\nwant an exposure of at most 3.1", unit, err, out)
		}
	}
}

// TestInitScripts checks the scripts for other init systems with the shell, and with shellcheck if
// it is installed.
func TestInitScripts(t *testing.T) {
	for _, script := range []string{"vipd.openrc", "runit/run", "runit/finish"} {
		path := filepath.Join("../../examples/init", script)
		if out, err := exec.Command("sh", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
		if lint, err := exec.LookPath("shellcheck"); err == nil {
			// OpenRC reads the variables. The shells of hosts with runit have ulimit -n.
			if out, err := exec.Command(lint, "-s", "sh", "-e", "SC2034,SC2154,SC3045", path).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", script, err, out)
			}
		}
	}
}
