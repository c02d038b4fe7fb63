package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"vipd/balancer"
	"vipd/cmd/internal/sockets"
)

// checkSockets looks for other programs that listen on a frontend's address and port.
func checkSockets(_ context.Context, o *observed) (found []Finding) {
	if len(o.Frontends) == 0 {
		return nil
	}
	owners := sync.OnceValue(o.Owners)
	shared := sharedVIPs(o)
	waiting := foreignSockets(o)
	for _, f := range o.Frontends {
		for _, s := range socketsIn(waiting, f.Port) {
			if !s.Receives(f.Key) {
				continue
			}
			owner, known := owners()[s.Inode]
			if owner == "vipd" || !known && o.Status != nil && s.At.Addr == f.Addr {
				continue // the socket is vipd's own, or probably is
			}
			found = append(found, listener(o, f, s.At, owner, shared[f.Addr])...)
		}
	}
	return orFine(found, "no other program listens on a service's address and port")
}

// foreignSockets maps each port to the listening sockets on it, except this process's own sockets.
func foreignSockets(o *observed) map[balancer.PortRange][]sockets.Socket {
	var own map[string]bool
	if o.Own != nil {
		own = o.Own()
	}
	all := map[balancer.PortRange][]sockets.Socket{}
	for _, file := range sockets.Files() {
		for _, s := range file.In(strings.NewReader(o.text(sockets.Folder + file.Name))) {
			if !own[s.Inode] {
				all[s.At.Port] = append(all[s.At.Port], s)
			}
		}
	}
	return all
}

// socketsIn returns the sockets on any port in a range.
func socketsIn(all map[balancer.PortRange][]sockets.Socket, ports balancer.PortRange) (in []sockets.Socket) {
	if !ports.IsRange() {
		return all[ports]
	}
	for port := range all {
		if ports.Contains(port.First()) {
			in = append(in, all[port]...)
		}
	}
	slices.SortFunc(in, func(a, b sockets.Socket) int { return a.At.Compare(b.At) })
	return in
}

// sharedVIPs returns the VIPs that are the host's own addresses, where clients may also use other
// programs.
func sharedVIPs(o *observed) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	if o.Status == nil || !o.Config.Addresses.Bind {
		return all // it is unknown which addresses are the host's own
	}
	for _, a := range o.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Held == "host" && !a.Owned && !addr.IsLoopback() {
			all[addr] = true
		}
	}
	return all
}

// listener returns the finding about another program's socket at a frontend. A socket on all
// addresses is harmless, unless vipd must also listen at the frontend, the frontend is a node port,
// or the host's own programs share the frontend's address.
func listener(o *observed, f Frontend, at balancer.Key, owner string, shared bool) []Finding {
	owner = cmp.Or(owner, "another program")
	what := fmt.Sprintf("%s listens on %s, which service %s uses (%s)", owner, at, f.Service, f.Key)
	show := fmt.Sprintf("ss -lntup 'sport = :%s'", at.Port)
	switch {
	case o.binds():
		return []Finding{problem(what, "in userspace mode without redirects, vipd itself must listen there", show)}
	case at.Addr == f.Addr || f.NodePort || shared:
		return []Finding{warning(what, "while vipd runs, the service gets all connections to this address", show)}
	}
	return nil
}
