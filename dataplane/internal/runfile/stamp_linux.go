package runfile

import (
	"errors"
	"os"
	"strings"
)

// Stamp returns the kernel's identifiers for the current boot and for the calling thread's network
// namespace. If one is unknown, Stamp returns "" for it, and the reason as the error.
func Stamp() (boot, namespace string, err error) {
	id, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, nsErr := os.Readlink("/proc/thread-self/ns/net")
	return strings.TrimSpace(string(id)), namespace, errors.Join(bootErr, nsErr)
}
