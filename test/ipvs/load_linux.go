package ipvs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// Load loads the IPVS module, which needs root, unless the kernel already has IPVS. The error says
// why IPVS is missing. It also loads the schedulers, because a kernel that loads them on demand may
// hang while it removes other tests' network namespaces.
func Load() error {
	const table = "/proc/thread-self/net/ip_vs"
	_, err := os.Stat(table)
	if errors.Is(err, fs.ErrNotExist) {
		if err = modprobe("ip_vs"); err == nil {
			_, err = os.Stat(table)
		}
	}
	for _, module := range []string{"ip_vs_lblc", "ip_vs_lblcr"} {
		if _, absent := os.Stat("/sys/module/" + module); err == nil && absent != nil {
			_ = modprobe(module) // some kernels don't have the scheduler; tests check that
		}
	}
	return err
}

func modprobe(module string) error {
	cmd := exec.Command("modprobe", module)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if text := strings.TrimSpace(string(out)); err != nil && text != "" {
		return errors.New(strings.ReplaceAll(text, "\n", "; "))
	}
	return err
}
