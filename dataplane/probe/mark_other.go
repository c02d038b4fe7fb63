//go:build !linux

package probe

import "errors"

// setMark returns an error, because only Linux has firewall marks.
func setMark(uintptr, uint32) error { return errors.New("only Linux has firewall marks") }
