//go:build !linux

package userspace

import (
	"net"
	"net/netip"
	"time"
)

// acceptedKeepAlive has each accepted connection send keepalives.
var acceptedKeepAlive = keepAlive

func inheritKeepAlive(uintptr) error { return nil }

// anyAddress does nothing here: a socket is bound to an address that the host has.
func anyAddress(uintptr, netip.Addr) error { return nil }

// announce leaves segment sizes to the kernel here.
func announce(uintptr, int) error { return nil }

// quietFor can't tell here. Bytes are counted as they pass, but for bulk.
func quietFor(*net.TCPConn) time.Duration { return forever }

// sourceControl is for the redirect interception, which is not here.
func sourceControl(netip.Addr) []byte { return nil }
