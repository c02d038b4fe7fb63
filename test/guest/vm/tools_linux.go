package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
)

const (
	qemu    = "qemu-system-x86_64"
	busybox = "busybox"
)

// Missing returns the reason why this machine can't run a guest, or nil.
func Missing() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the guest is for amd64, this is %s", runtime.GOARCH)
	}
	if text, _ := os.ReadFile("/etc/os-release"); !isDebian(string(text)) {
		return errors.New("the guest boots Debian's kernel, and this is not Debian")
	}
	packages := map[string]string{
		qemu: "qemu-system-x86", "depmod": "kmod", "apt-get": "apt", "dpkg-deb": "dpkg", "bash": "bash", "xz": "xz-utils",
	}
	var missing []string
	for name, pkg := range packages {
		if _, err := tool(name); err != nil {
			missing = append(missing, pkg)
		}
	}
	if !staticBusybox() {
		missing = append(missing, "busybox-static")
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("the guest needs %s: apt-get install %[1]s", strings.Join(missing, " "))
}

// isDebian reports whether an os-release file describes a system with Debian's packages. Ubuntu
// does not count, because it has other kernels.
func isDebian(release string) bool {
	for line := range strings.Lines(release) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		names := strings.Fields(strings.Trim(value, `"'`))
		if (key == "ID" || key == "ID_LIKE") && slices.Contains(names, "debian") {
			return !strings.Contains(release, "ubuntu")
		}
	}
	return false
}

// staticBusybox reports whether a static busybox exists. It must be static because it runs before
// the guest can read this machine's files.
func staticBusybox() bool {
	path, err := tool(busybox)
	if err != nil {
		return false
	}
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// tool returns the path of a program in PATH, /usr/sbin or /sbin. PATH may lack the last two for
// users other than root.
func tool(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, folder := range []string{"/usr/sbin/", "/sbin/"} {
		if err == nil {
			break
		}
		path, err = exec.LookPath(folder + name)
	}
	return path, err
}

// output runs a tool in a directory, and returns its output in English. An error contains the last
// lines.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	path, err := tool(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(append([]string{name}, args...), " "), err, strings.TrimSpace(problems.String()))
	}
	return out.String(), nil
}
