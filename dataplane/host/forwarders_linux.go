package host

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sysctlFiles returns the patterns of files in which administrators and packages set sysctls for
// the next boot (see sysctl.d(5)).
func sysctlFiles() []string {
	return []string{"/etc/sysctl.conf", "/etc/sysctl.d/*.conf", "/run/sysctl.d/*.conf", "/usr/local/lib/sysctl.d/*.conf", "/usr/lib/sysctl.d/*.conf"}
}

// setIn returns the first file that sets a sysctl to a value, or "".
func setIn(patterns []string, name, value string) string {
	for _, pattern := range patterns {
		files, _ := filepath.Glob(pattern) // Glob fails only for invalid patterns
		for _, file := range files {
			if sets(file, name, value) {
				return file
			}
		}
	}
	return ""
}

func sets(file, name, value string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // the file was only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, text, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "-"), "=")
		if found && strings.ReplaceAll(strings.TrimSpace(key), "/", ".") == name && strings.TrimSpace(text) == value {
			return true
		}
	}
	return false
}

// neededByOthers returns the reason why a sysctl that vipd has set should keep its value, or "". If
// the value was already set when a program such as Docker started, only the interfaces between
// which it forwards reveal that it needs the value.
func (k *handles) neededByOthers(name, value string) string {
	if file := setIn(sysctlFiles(), name, value); file != "" {
		return file + " sets it"
	}
	if name != forward4 {
		return ""
	}
	links, err := retryInterrupted(k.nl.LinkList)
	if err != nil {
		return fmt.Sprintf("it is unknown whether other programs need it: listing links: %v", err)
	}
	for _, l := range links {
		if slices.Contains([]string{"bridge", "tuntap", "wireguard", "vxlan"}, l.Type()) && l.Attrs().Flags&net.FlagUp != 0 {
			return fmt.Sprintf("%s %s might need it", l.Type(), l.Attrs().Name)
		}
	}
	return ""
}
