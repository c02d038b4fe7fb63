//go:build !linux

package owner

import (
	"errors"
	"net"
	"time"

	"vipd/balancer/failover/local"
)

// began is the start of the process-wide clock.
var began = time.Now()

func now() local.Time { return local.Time(time.Since(began)) + 1 }

// SetRealtime does nothing, because owning VIPs requires Linux.
func SetRealtime() []error { return nil }

func machine() (string, error) { return "", errors.New("owning VIPs needs Linux") }

func peer(net.Conn) int { return 0 }

func frozen(int) bool { return false }
