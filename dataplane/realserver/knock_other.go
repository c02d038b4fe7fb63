//go:build !linux

package realserver

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// Knock returns an error, because direct routing needs Linux.
func Knock(context.Context, Target, netip.Addr, time.Duration) (Answer, error) {
	return "", errors.New("direct routing needs Linux")
}
