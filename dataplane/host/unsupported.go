package host

import (
	"errors"
	"syscall"
)

// isDenied reports whether the privilege was missing.
func isDenied(err error) bool { return errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) }
