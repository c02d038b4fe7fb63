package runfile

import (
	"errors"
	"os"
	"strings"
)

// Stamp returns the kernel's identifiers of this boot and of the calling thread's network
// namespace. If either is unknown, it is "", and the error is the reason.
func Stamp() (boot, namespace string, err error) {
	id, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, nsErr := os.Readlink("/proc/thread-self/ns/net")
	return strings.TrimSpace(string(id)), namespace, errors.Join(bootErr, nsErr)
}
