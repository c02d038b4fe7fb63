package ipvsnl

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// HasScheduler implements Conn. It asks for a virtual server that can't be: the kernel looks for the scheduler, and
// loads its module, ahead of refusing a prefix of no bits for persistent IPv6 clients. So nothing is made to be deleted
// again, which others would see, and which would stay if this process ended in between.
func (k *Client) HasScheduler(ctx context.Context, name string) (bool, error) {
	if name == "" || len(name) >= schedulerSize {
		return false, nil
	}
	refusals, err := ask(ctx, k, func(s *socket) {
		s.begin(byte(AddService), unix.NLM_F_ACK)
		s.Nest(aboutService)
		s.key(nobody6)
		s.service(&Service{Key: nobody6, Scheduler: name})
		s.Native32(serviceNetmask, 0) // the last one of a kind counts
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

// foundScheduler says what it means that the kernel refused the virtual server that can't be.
func (k *Client) foundScheduler(refusal error) (bool, error) {
	switch refusal {
	case syscall.EINVAL, syscall.EAFNOSUPPORT: // the latter: without IPv6 only making one tells, and says ErrNoScheduler
		return true, nil
	case syscall.ENOENT:
		return false, k.unloaded()
	}
	return false, refusal
}

// Addresses for documentation, which no virtual server has (RFC 5737, RFC 3849).
var (
	nobody  = balancer.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, 0}), Port: 9, Proto: balancer.TCP}
	nobody6 = balancer.Key{Addr: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}), Port: 9, Proto: balancer.TCP}
)
