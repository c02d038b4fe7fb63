package guard

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// TestUnusableAdvice checks the advice in errors. If the kernel refuses a rule, the error must name
// the required Linux version. If the process lacks permission, the error must advise running vipd
// as root.
func TestUnusableAdvice(t *testing.T) {
	for errno, want := range map[unix.Errno]string{unix.EOPNOTSUPP: "Linux 5.9", unix.ENOENT: "Linux 5.9", unix.EPERM: "run as root"} {
		err := unusable(inet.IPv4, errors.Join(&nft.Error{Errno: errno}))
		if !strings.Contains(err.Error(), want) || !errors.Is(err, errno) {
			t.Errorf("unusable(%v) = %q, want %q", errno, err, want)
		}
	}
}

// TestFastPathWithoutPermission makes the kernel refuse the flowtable and a device for lack of
// permission. The guard must record the reasons and continue. It must return errors that are not
// refusals.
func TestFastPathWithoutPermission(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EPERM, unix.EACCES} {
		y := &familyGuard{wanted: &wanted{}}
		refusal := &nft.Error{Errno: errno}
		if err := errors.Join(y.noFastPath(refusal), y.noFastDevice("eth0", refusal)); err != nil {
			t.Errorf("error = %v, want nil", err)
		}
		if !errors.Is(y.fast.fault, errno) || !errors.Is(y.fast.refused["eth0"], errno) {
			t.Errorf("reasons = %v, %v; want %v for both", y.fast.fault, y.fast.refused, errno)
		}
		if y.noFastPath(errno) == nil || y.noFastDevice("eth0", errno) == nil {
			t.Error("error = nil, want the error that is not a refusal")
		}
	}
}
