//go:build !linux

package owner

import (
	"errors"
	"log/slog"
	"time"
)

// NewKernel returns an error: owning VIPs needs Linux.
func NewKernel(*slog.Logger, time.Duration, time.Duration) Maker {
	return func(places, Hears) (Kernel, error) {
		return nil, errors.New("owning VIPs needs Linux")
	}
}
