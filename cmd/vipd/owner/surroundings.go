package owner

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer/lib/wake"
	onhost "vipd/dataplane/failover"
)

// networkInfo holds facts about the host's networks that are determined at run time.
type networkInfo struct {
	changed wake.Signal

	mu      sync.Mutex   // guards the fields below
	way     []netip.Addr // this host's address on the route to etcd
	routers []netip.Addr // the default gateways; nil if the configuration names the hosts that must answer
}

// followEtcdAddr determines each second which local address reaches etcd, until ctx is done. Name
// lookups may be slow, so the caller must not wait for followEtcdAddr.
func (x *networkInfo) followEtcdAddr(ctx context.Context, endpoints []string) {
	for on := true; on; on = wake.Sleep(ctx, time.Second) {
		x.set(&x.way, onhost.WayTo(ctx, endpoints))
	}
}

// findRouters determines the default gateways. If they can't be read, it keeps the last result.
func (x *networkInfo) findRouters() {
	if all, err := onhost.Routers(); err == nil {
		x.set(&x.routers, all)
	}
}

// set replaces a list, and sends changed if the list differs.
func (x *networkInfo) set(list *[]netip.Addr, next []netip.Addr) {
	x.mu.Lock()
	same := slices.Equal(*list, next)
	*list = next
	x.mu.Unlock()
	if !same {
		x.changed.Send()
	}
}

// get returns the local address that reaches etcd, and the default gateways.
func (x *networkInfo) get() (way, routers []netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.way, x.routers
}
