//go:build !linux

package ipvs

import "errors"

// Load returns an error, because only Linux has IPVS.
func Load() error { return errors.New("only Linux has it") }
