package guard

import (
	"errors"
	"syscall"

	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// isUnsupported reports whether err says that the host can't do it, so that trying again soon is of no use.
func isUnsupported(err error) bool {
	var unsupported *xtables.UnsupportedError
	return errors.As(err, &unsupported) || errors.Is(err, ipset.ErrUnsupported) || isDenied(err)
}

// isDenied reports whether the privilege was missing.
func isDenied(err error) bool { return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) }
