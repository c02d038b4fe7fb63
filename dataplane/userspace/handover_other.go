//go:build !linux

package userspace

import "net"

// inheritance is what an earlier process has handed over; nothing, on this system.
type inheritance struct{}

// heir is the process that takes over. There is none on this system.
type heir struct{}

func (*inheritance) listener(*frontend) *net.TCPListener  { return nil }
func (*inheritance) packets(*frontend, bool) *net.UDPConn { return nil }
func (*Dataplane) adopt(*frontend)                        {}
func (*Dataplane) discard()                               {}
func (*frontend) adoptFlowsLocked()                       {}
func (*conn) handOver() bool                              { return false }
