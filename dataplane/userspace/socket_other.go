//go:build !linux

package userspace

import (
	"net"
	"time"
)

// acceptedKeepAlive has each accepted connection send keepalives.
var acceptedKeepAlive = keepAlive

func inheritKeepAlive(uintptr) error { return nil }

// quietFor can't tell here. Bytes are counted as they pass, but for bulk.
func quietFor(*net.TCPConn) time.Duration { return forever }
