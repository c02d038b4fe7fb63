package guard

import (
	"errors"
	"io/fs"

	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// isUnsupported reports whether err says that the host can't do it, so that trying again soon is of no use.
func isUnsupported(err error) bool {
	var unsupported *xtables.UnsupportedError
	return errors.As(err, &unsupported) || errors.Is(err, ipset.ErrUnsupported) || errors.Is(err, fs.ErrPermission)
}
