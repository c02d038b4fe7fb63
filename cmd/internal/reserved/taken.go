package reserved

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/sockets"
)

// kept is how long a port stays reserved after its program has stopped listening, because the
// program may only be restarting.
const kept = time.Minute

// portTracker tracks the ports on which programs on the host listen.
type portTracker struct {
	o    Options
	seen map[balancer.Key]time.Time // when a program last listened; the zero address stands for all addresses
	// before holds the sockets that the previous call of look found. own holds this process's
	// sockets.
	before, own map[sockets.Socket]bool
}

// look returns the ports on which other programs listen, or recently listened, sorted. A UDP socket
// counts only if the previous call also found it, because most UDP sockets belong to clients and
// close soon.
func (t *portTracker) look(now time.Time) (all []balancer.Reserved) {
	if t.o.Sockets == nil {
		return nil
	}
	first, last := localPorts()
	chosen := func(k balancer.Key) bool { return first <= k.Port.First() && k.Port.First() <= last } // the kernel probably chose the port
	found := map[sockets.Socket]bool{}
	for _, s := range t.o.Sockets() {
		if s.At.Addr.IsUnspecified() && s.At.Proto == balancer.UDP && chosen(s.At) {
			continue // a client, or vipd's socket for redirected datagrams
		}
		found[s] = true
	}
	t.findOwn(found, chosen)
	for s := range found {
		key := s.At
		switch {
		case key.Addr.IsLoopback(), t.own[s], key.Proto == balancer.UDP && !t.before[s]:
			continue
		case key.Addr.IsUnspecified():
			key.Addr = netip.Addr{}
		}
		t.seen[key] = now
	}
	t.before = found
	maps.DeleteFunc(t.seen, func(_ balancer.Key, last time.Time) bool { return now.Sub(last) > kept })
	for key := range t.seen {
		all = append(all, balancer.Reserved{Addr: key.Addr, Port: key.Port.First(), Proto: key.Proto, Description: "a program on this node listens on it"})
	}
	slices.SortFunc(all, func(a, b balancer.Reserved) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
	})
	return all
}

// findOwn sets own to the sockets on which this process serves in userspace mode. It considers only
// sockets that are bound to a specific address, or whose port the kernel probably chose. Listing
// this process's sockets is expensive if it has many connections, so findOwn lists them only if
// there is a new socket.
func (t *portTracker) findOwn(found map[sockets.Socket]bool, chosen func(balancer.Key) bool) {
	var all map[string]bool
	own := map[sockets.Socket]bool{}
	for s := range found {
		if s.At.Addr.IsUnspecified() && !chosen(s.At) || s.At.Addr.IsLoopback() {
			continue
		}
		if all == nil && !t.before[s] {
			all = t.o.Own()
		}
		if all[s.Inode] || t.own[s] {
			own[s] = true
		}
	}
	t.own = own
}

// localPorts returns the range from which the kernel chooses ports (net.ipv4.ip_local_port_range).
// If the setting can't be read, it returns the kernel's default.
func localPorts() (first, last uint16) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if _, scanErr := fmt.Sscan(string(text), &first, &last); err != nil || scanErr != nil {
		return 32768, 60999
	}
	return first, last
}
