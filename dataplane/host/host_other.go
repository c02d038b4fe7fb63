//go:build !linux

package host

import (
	"context"
	"net/netip"
	"runtime"
)

// Host is a Bystander where vipd can't add addresses.
type Host struct{ *Bystander }

// New returns a Host that holds nothing.
func New(Options) (*Host, error) {
	return &Host{NewBystander("vipd adds no addresses on " + runtime.GOOS + ": add it, or use VIPs in 127.0.0.0/8")}, nil
}

// Cleanup has nothing to remove.
func Cleanup(context.Context, Options, bool) ([]string, error) { return nil, nil }

// InLedger finds nothing.
func InLedger(string) (map[netip.Addr]string, error) { return nil, nil }

// RouteTo knows loopback alone.
func RouteTo(a netip.Addr) (Route, error) { return Route{Local: a.IsLoopback()}, nil }

// Unforwarded names none: no mode forwards there.
func Unforwarded(netip.Addr, Route) string { return "" }
