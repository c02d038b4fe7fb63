package guard

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// TestUnusableAdvice checks the advice of errors. If this kernel refuses a rule, the advice must be
// a newer kernel. If the kernel refuses the process, the advice must be root.
func TestUnusableAdvice(t *testing.T) {
	for errno, want := range map[unix.Errno]string{unix.EOPNOTSUPP: "Linux 5.9", unix.ENOENT: "Linux 5.9", unix.EPERM: "run as root"} {
		err := unusable(inet.IPv4, errors.Join(&nft.Error{Errno: errno}))
		if !strings.Contains(err.Error(), want) || !errors.Is(err, errno) {
			t.Errorf("unusable(%v) = %q, want %q", errno, err, want)
		}
	}
}
