package ipvsnl

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// HasScheduler implements [Conn]. It tries to add an invalid virtual server. The kernel searches
// for the scheduler, and loads its module, before it refuses an empty prefix for persistent IPv6
// clients. So the request creates no object that other programs could see or that could remain if
// this process were killed.
func (k *Client) HasScheduler(ctx context.Context, name string) (bool, error) {
	if name == "" || len(name) >= schedulerSize {
		return false, nil
	}
	refusals, err := ask(ctx, k, func(s *socket) {
		s.begin(byte(AddService), unix.NLM_F_ACK)
		s.Nest(aboutService)
		s.key(nobody6)
		s.service(&Service{Key: nobody6, Scheduler: name})
		s.Native32(serviceNetmask, 0) // overrides the previous attribute of this kind
		s.Unnest()
		s.End()
	}, func(s *socket) ([]error, error) { return s.refusals(1) })
	has := false
	if err == nil {
		has, err = k.foundScheduler(refusals[0])
	}
	if err != nil {
		return false, fmt.Errorf("looking for scheduler %q: %w", name, err)
	}
	return has, nil
}

// foundScheduler interprets the kernel's refusal of the invalid virtual server.
func (k *Client) foundScheduler(refusal error) (bool, error) {
	switch refusal {
	case syscall.EINVAL, syscall.EAFNOSUPPORT: // a kernel without IPv6 returns EAFNOSUPPORT before it searches for the scheduler
		return true, nil
	case syscall.ENOENT:
		return false, k.unloaded()
	}
	return false, refusal
}

// These are documentation addresses, which no virtual server uses (RFC 5737, RFC 3849).
var (
	nobody  = balancer.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, 0}), Port: 9, Proto: balancer.TCP}
	nobody6 = balancer.Key{Addr: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}), Port: 9, Proto: balancer.TCP}
)
