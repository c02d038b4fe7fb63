package guard

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// TestUnusableAdvice checks the advice of an error: a newer kernel if this one refuses a rule, and
// root if it refuses the process.
func TestUnusableAdvice(t *testing.T) {
	for errno, want := range map[unix.Errno]string{unix.EOPNOTSUPP: "Linux 5.9", unix.ENOENT: "Linux 5.9", unix.EPERM: "run as root"} {
		err := unusable(inet.IPv4, errors.Join(&nft.Error{Errno: errno}))
		if !strings.Contains(err.Error(), want) || !errors.Is(err, errno) {
			t.Errorf("unusable(%v) = %q, want %q", errno, err, want)
		}
	}
}
