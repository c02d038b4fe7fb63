//go:build !linux

package probe

import "errors"

// setMark refuses: other systems have no such mark.
func setMark(uintptr, uint32) error { return errors.New("only Linux has firewall marks") }
