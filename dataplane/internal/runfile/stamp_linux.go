package runfile

import (
	"errors"
	"os"
	"strings"
)

// Stamp returns the kernel's names for this boot and for the calling thread's network namespace. Either is "" where it can't
// be told; the error says why.
func Stamp() (boot, namespace string, err error) {
	id, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, nsErr := os.Readlink("/proc/thread-self/ns/net")
	return strings.TrimSpace(string(id)), namespace, errors.Join(bootErr, nsErr)
}
