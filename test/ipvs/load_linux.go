package ipvs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// Load finds IPVS in the kernel, or loads its module, which needs root. The error says why there is none.
func Load() error {
	const table = "/proc/thread-self/net/ip_vs"
	if _, err := os.Stat(table); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cmd := exec.Command("modprobe", "ip_vs")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		if text := strings.TrimSpace(string(out)); text != "" {
			return errors.New(strings.ReplaceAll(text, "\n", "; "))
		}
		return err
	}
	_, err := os.Stat(table)
	return err
}
