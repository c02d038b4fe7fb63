package packaging

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestScriptsAreShell reads the packages' scripts with sh -n. It must find no syntax errors.
func TestScriptsAreShell(t *testing.T) {
	var scripts []string
	for _, pattern := range []string{"deb/*", "rpm/*", "version"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, found...)
	}
	if len(scripts) != 7 {
		t.Errorf("scripts = %v, want 7 of them", scripts)
	}
	for _, script := range scripts {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("sh -n %s: error = %v, want none\n%s", script, err, out)
		}
	}
}

// TestVersion converts versions of the tree to versions of packages. Debian and RPM must sort the
// results like the tags and commits.
func TestVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.3.0-rc1": "1.3.0~rc1", "v1.2.3-5-gabcdef0": "1.2.3+5.gabcdef0", "v0.0.0-7-gabcdef0-dirty": "0.0.0+7.gabcdef0.dirty",
	} {
		cmd := exec.Command("./version", "package")
		cmd.Env = append(os.Environ(), "VERSION="+version)
		if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: version = %q, %v, want %q", version, out, err, want)
		}
	}
}

// TestVersionWithoutTag computes the version of a tree without tags. It must consist of the newest
// version in the changelog and the number of commits since then.
func TestVersionWithoutTag(t *testing.T) {
	script, err := filepath.Abs("version")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("git", "init", "-q")
	for i, text := range []string{"# Changelog\n", "## 0.9.0 - 2026-01-01\n", "## 0.10.0 - 2026-02-01\n\n## 0.9.0 - 2026-01-01\n", "## Unreleased\n\n## 0.10.0 - 2026-02-01\n\n## 0.9.0 - 2026-01-01\n"} {
		if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		run("git", "add", "CHANGELOG.md")
		run("git", "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", fmt.Sprint(i))
	}
	if got := run("sh", script); !strings.HasPrefix(got, "v0.10.0-1-g") {
		t.Errorf("version = %q, want v0.10.0-1-gCOMMIT", got)
	}
	if got := run("sh", script, "package"); !strings.HasPrefix(got, "0.10.0+1.g") {
		t.Errorf("version = %q, want 0.10.0+1.gCOMMIT", got)
	}
}

// TestContents reads nfpm.yaml, the list of the packages' contents. It must contain each file for
// systemd, and each file of the tree in it must exist.
func TestContents(t *testing.T) {
	list, err := os.ReadFile("nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../systemd/*.d/*.conf")
	if err != nil || len(files) < 5 {
		t.Fatalf("configuration files = %v, error = %v; want at least 5", files, err)
	}
	for _, file := range files {
		if name := strings.TrimPrefix(file, "../"); !bytes.Contains(list, []byte(name)) {
			t.Errorf("nfpm.yaml has no %s, want it", name)
		}
	}
	units, err := filepath.Glob("../systemd/*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("units = %v, error = %v; want at least one", units, err)
	}
	for _, unit := range units {
		if name := filepath.Base(unit); !bytes.Contains(list, []byte("@STAGE@/"+name)) {
			t.Errorf("nfpm.yaml has no %s, want it", name)
		}
	}
	for line := range strings.Lines(string(list)) {
		_, rest, found := strings.Cut(line, "{ src: ")
		source, _, _ := strings.Cut(rest, ",")
		if found && !strings.HasPrefix(source, `"@`) {
			if files, err := filepath.Glob(filepath.Join("..", source)); err != nil || len(files) == 0 {
				t.Errorf("nfpm.yaml names %s, which does not exist; error = %v", source, err)
			}
		}
	}
}

// TestPackagesAreReproducible compares two builds of the packages. They must be identical, and
// their programs must be static and have the right architecture. test/systemd tests the packages on
// a host.
func TestPackagesAreReproducible(t *testing.T) {
	folder := os.Getenv("VIPD_PACKAGES")
	if folder == "" {
		t.Skip("needs packages of two versions: make package-test builds them")
	}
	files, err := filepath.Glob(filepath.Join(folder, "new", "*"))
	if err != nil || len(files) != 4 {
		t.Fatalf("packages = %v, error = %v, want .deb and .rpm for two architectures", files, err)
	}
	for _, file := range files {
		first, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(filepath.Join(folder, "again", filepath.Base(file)))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(first, second) {
			t.Errorf("second build of %s differs from the first, want the same bytes", filepath.Base(file))
		}
	}
	for arch, want := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		root := t.TempDir()
		debs, _ := filepath.Glob(filepath.Join(folder, "new", "*_"+arch+".deb"))
		if out, err := exec.Command("dpkg-deb", append([]string{"-x"}, append(debs, root)...)...).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, out)
		}
		needs, err := exec.Command("dpkg-deb", append(append([]string{"-f"}, debs...), "Pre-Depends", "Depends", "Recommends", "Suggests")...).Output()
		if want := "Recommends: iptables, kmod\nSuggests: ipset, conntrack\n"; err != nil || string(needs) != want {
			t.Errorf("%s: dependencies = %q, error = %v, want %q", arch, needs, err, want)
		}
		for _, program := range []string{"vipd", "vipctl"} {
			f, err := elf.Open(filepath.Join(root, "usr/bin", program))
			if err != nil {
				t.Fatal(err)
			}
			libraries, err := f.ImportedLibraries()
			if f.Machine != want || err != nil || len(libraries) > 0 {
				t.Errorf("%s of %s: machine = %v, libraries = %v, error = %v; want a static program", program, arch, f.Machine, libraries, err)
			}
			_ = f.Close()
		}
	}
}
