package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// setting is a line that does something once its # is removed.
var setting = regexp.MustCompile(`(?m)^#([a-z_-]\S*( = \S+)?)$`)

// active returns a copy of a file in which everything is on.
func active(t *testing.T, file string) (path, text string) {
	t.Helper()
	text = setting.ReplaceAllString(read(t, file), "$1")
	path = filepath.Join(t.TempDir(), "vipd.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, text
}

// lines are those of a text that do something.
func lines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

// TestNothingIsActive: what is installed loads no module and sets no sysctl on hosts that use another mode.
func TestNothingIsActive(t *testing.T) {
	for _, file := range []string{"../../systemd/modules-load.d/vipd.conf", "../../systemd/sysctl.d/vipd.conf"} {
		if got := lines(read(t, file)); len(got) > 0 {
			t.Errorf("%s: got %q active, want nothing", file, got)
		}
		if _, text := active(t, file); len(lines(text)) < 8 {
			t.Errorf("%s: got %q to be activated: the pattern no longer fits it", file, lines(text))
		}
	}
}

// TestModuleOptions: modprobe takes the options, and they are for ip_vs alone.
func TestModuleOptions(t *testing.T) {
	lab.Need(t, "modprobe")
	out, err := exec.Command("modprobe", "-C", "../../systemd/modprobe.d", "-c").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"options ip_vs conn_tab_bits=20"}
	if got := lines(read(t, "../../systemd/modprobe.d/vipd.conf")); !slices.Equal(got, want) {
		t.Errorf("the file has %q, want %q", got, want)
	}
	if !slices.Contains(lines(string(out)), want[0]) {
		t.Errorf("modprobe does not know of %q:\n%s", want[0], out)
	}
}

// TestIPVSBootFiles lets the programs that run at boot take the files with everything on: each module is loaded, and
// each sysctl gets its value, those of IPVS too.
func TestIPVSBootFiles(t *testing.T) {
	lab.NeedIPVS(t)
	const load, set = "/lib/systemd/systemd-modules-load", "/lib/systemd/systemd-sysctl"
	lab.Need(t, load, set)
	modules, text := active(t, "../../systemd/modules-load.d/vipd.conf")
	if out, err := exec.Command(load, modules).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, module := range lines(text) {
		if _, err := os.Stat("/sys/module/" + module); err != nil {
			t.Errorf("after loading: %v", err)
		}
	}
	sysctls, text := active(t, "../../systemd/sysctl.d/vipd.conf")
	if out, err := exec.Command(set, sysctls).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	for _, line := range lines(text) {
		name, want, _ := strings.Cut(strings.TrimPrefix(line, "-"), " = ")
		if got, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: got %q (%v), want %s", name, got, err, want)
		}
	}
}
