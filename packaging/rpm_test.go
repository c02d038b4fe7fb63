package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vipd/test/lab"
)

// TestRPMInARoot installs, verifies, upgrades and removes the RPM packages in a separate root
// directory. They must contain the same files as the Debian packages, and leave no file after the
// removal. Their scripts don't run, because they need a shell there. test/systemd tests the
// packages with scripts, systemd and traffic.
func TestRPMInARoot(t *testing.T) {
	folder := os.Getenv("VIPD_PACKAGES")
	if folder == "" {
		t.Skip("needs packages of two versions: make package-test builds them")
	}
	lab.Need(t, "rpm", "dpkg-deb")
	root := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	rpm := func(args ...string) string {
		t.Helper()
		return run("rpm", append([]string{"--root", root}, args...)...)
	}
	packageFile := func(version, pattern string) string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(folder, version, pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("files %s of the %s version = %v, error = %v, want one file", pattern, version, found, err)
		}
		return found[0]
	}
	files := func(list string) (paths []string) {
		for line := range strings.Lines(list) {
			path := strings.TrimPrefix(strings.TrimSpace(line), ".")
			path = strings.Replace(path, "/zsh/vendor-completions/", "/zsh/site-functions/", 1) // the directory has another name in Debian's package
			if info, err := os.Stat(filepath.Join(root, path)); !strings.HasSuffix(path, "/") && (err != nil || !info.IsDir()) {
				paths = append(paths, path)
			}
		}
		slices.Sort(paths)
		return paths
	}
	rpm("--initdb")
	rpm("-i", "--nodeps", "--noscripts", packageFile("old", "*.x86_64.rpm"))
	rpm("-V", "--nodeps", "vipd")
	rpm("-U", "--nodeps", "--noscripts", packageFile("new", "*.x86_64.rpm"))
	rpm("-V", "--nodeps", "vipd")
	got := files(rpm("-ql", "vipd"))
	deb := run("sh", "-ec", `dpkg-deb --fsys-tarfile "$1" | tar -t`, "sh", packageFile("new", "*_amd64.deb"))
	if want := files(deb); len(got) < 20 || !slices.Equal(got, want) {
		t.Errorf("files of the RPM =\n%s\nwant the files of the Debian package =\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for line := range strings.Lines(rpm("-q", "--requires", "vipd")) { // only rpm's own features, the package's configuration and sh
		if !strings.HasPrefix(line, "rpmlib(") && !strings.HasPrefix(line, "config(vipd)") && line != "/bin/sh\n" {
			t.Errorf("requirement of the RPM = %s, want only features of rpm and sh", line)
		}
	}
	if got, want := rpm("-q", "--recommends", "--suggests", "vipd"), "iptables\nkmod\nipset\nconntrack\n"; got != want {
		t.Errorf("recommended and suggested packages of the RPM = %q, want %q", got, want)
	}
	rpm("-e", "--noscripts", "vipd")
	for _, path := range got {
		if _, err := os.Lstat(filepath.Join(root, path)); err == nil {
			t.Errorf("%s exists after the removal, want it missing", path)
		}
	}
}
