package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"vipd/balancer"
	"vipd/cmd/internal/sockets"
)

// sockets reads all sockets that wait for clients.
func (v *visit) sockets() (all []sockets.Socket) {
	for _, f := range sockets.Files() {
		all = append(all, f.In(strings.NewReader(v.text(sockets.Folder+f.Name)))...)
	}
	return all
}

// checkSockets looks for other programs that listen where frontends are.
func checkSockets(_ context.Context, v *visit) {
	before := len(v.found)
	if len(v.Frontends) == 0 {
		return
	}
	owners, hosts, own := sync.OnceValue(v.Owners), v.hosts(), map[string]bool{}
	if v.Own != nil {
		own = v.Own()
	}
	waiting := map[uint16][]sockets.Socket{}
	for _, s := range v.sockets() {
		if !own[s.Inode] {
			waiting[s.At.Port] = append(waiting[s.At.Port], s)
		}
	}
	for _, f := range v.Frontends {
		for _, s := range waiting[f.Port] {
			if !s.Takes(f.Key) {
				continue
			}
			owner, known := owners()[s.Inode]
			if owner == "vipd" || !known && v.Status != nil && s.At.Addr == f.Addr {
				continue // its own, or most likely so
			}
			v.taken(f, s.At, owner, hosts[f.Addr])
		}
	}
	if len(v.found) == before {
		v.add(fine("no other program listens where services do"))
	}
}

// hosts are the VIPs that are addresses by which clients come to the host's programs, too: its own, unless other programs add VIPs.
func (v *visit) hosts() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	if v.Status == nil || !v.Config.Addresses.Bind {
		return all
	}
	for _, a := range v.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Held == "host" && !a.Owned && !addr.IsLoopback() {
			all[addr] = true
		}
	}
	return all
}

// taken looks at a socket of another program on a frontend. One on every address is in no one's way, unless vipd listens
// itself, or clients come to the address for the host's programs as well.
func (v *visit) taken(f Frontend, at balancer.Key, owner string, hosts bool) {
	owner = cmp.Or(owner, "another program")
	what := fmt.Sprintf("%s listens on %s, where service %s is (%s)", owner, at, f.Service, f.Key)
	show := fmt.Sprintf("ss -lntup 'sport = :%d'", f.Port)
	switch {
	case v.binds():
		v.add(problem(what, "vipd has to listen there itself in userspace mode without redirects", show))
	case at.Addr == f.Addr || f.NodePort || hosts:
		v.add(warning(what, "it gets no connection any more that comes to this address, and comes back in its place when vipd goes", show))
	}
}
