//go:build !linux

package ipvs

import "errors"

// Load says that only Linux has IPVS.
func Load() error { return errors.New("only Linux has it") }
