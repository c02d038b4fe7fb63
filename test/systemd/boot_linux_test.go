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

// setting matches a commented-out setting.
var setting = regexp.MustCompile(`(?m)^#([a-z_-]\S*( = \S+)?)$`)

// active returns a copy of a file in which everything is uncommented.
func active(t *testing.T, file string) (path, text string) {
	t.Helper()
	text = setting.ReplaceAllString(read(t, file), "$1")
	path = filepath.Join(t.TempDir(), "vipd.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path, text
}

// lines returns a text's lines except comments and blank lines.
func lines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

// TestNothingIsActive reads the installed files. They must not load a module or set a sysctl,
// because most hosts don't use ipvs mode.
func TestNothingIsActive(t *testing.T) {
	for _, file := range []string{"../../systemd/modules-load.d/vipd.conf", "../../systemd/sysctl.d/vipd.conf"} {
		if got := lines(read(t, file)); len(got) > 0 {
			t.Errorf("%s: active settings = %q, want none", file, got)
		}
		if _, text := active(t, file); len(lines(text)) < 8 {
			t.Errorf("%s: settings to activate = %q: the pattern no longer matches", file, lines(text))
		}
	}
}

// TestModuleOptions passes the options to modprobe. modprobe must accept the options, and they must
// apply only to ip_vs.
func TestModuleOptions(t *testing.T) {
	lab.Need(t, "modprobe")
	out, err := exec.Command("modprobe", "-C", "../../systemd/modprobe.d", "-c").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"options ip_vs conn_tab_bits=20"}
	if got := lines(read(t, "../../systemd/modprobe.d/vipd.conf")); !slices.Equal(got, want) {
		t.Errorf("lines of the file = %q, want %q", got, want)
	}
	if !slices.Contains(lines(string(out)), want[0]) {
		t.Errorf("modprobe does not know %q:\n%s", want[0], out)
	}
}

// TestIPVSBootFiles runs the programs that load modules and set sysctls at boot. The files have
// everything uncommented. Each module must be loaded, and each sysctl must be set, including IPVS's
// sysctls.
func TestIPVSBootFiles(t *testing.T) {
	lab.NeedIPVS(t)
	const load, set = "/lib/systemd/systemd-modules-load", "/lib/systemd/systemd-sysctl"
	lab.Need(t, load, set)
	modules, text := active(t, "../../systemd/modules-load.d/vipd.conf")
	if out, err := exec.Command(load, modules).CombinedOutput(); err != nil {
		t.Fatalf("loading the modules: error = %v, want none\n%s", err, out)
	}
	for _, module := range lines(text) {
		if _, err := os.Stat("/sys/module/" + module); err != nil {
			t.Errorf("module is missing after loading: %v", err)
		}
	}
	sysctls, text := active(t, "../../systemd/sysctl.d/vipd.conf")
	if out, err := exec.Command(set, sysctls).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("setting the sysctls: error = %v, want no error and no output:\n%s", err, out)
	}
	for _, line := range lines(text) {
		name, want, _ := strings.Cut(strings.TrimPrefix(line, "-"), " = ")
		if got, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s = %q (%v), want %s", name, got, err, want)
		}
	}
}
