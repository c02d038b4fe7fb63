package lockfile

import "errors"

// ErrHeld means that another process has the lock.
var ErrHeld = errors.New("another vipd runs already, or a cleanup is under way")
