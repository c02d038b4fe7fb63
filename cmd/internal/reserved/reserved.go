package reserved

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/sockets"
)

// These are the update intervals, and the timeout for a name lookup. Routes are checked often,
// because that needs only a few system calls. Names are looked up rarely, because 10,000 nodes'
// lookups put load on the name servers.
const (
	routesEvery = 10 * time.Second
	namesEvery  = 5 * time.Minute
	lookupTime  = 5 * time.Second
)

// Options configures a Follower.
type Options struct {
	// Endpoints are etcd's URLs.
	Endpoints []string
	// Gateways returns the gateways through which this host reaches addresses. If nil, gateways are
	// ignored.
	Gateways func(to []netip.Addr) []netip.Addr
	// Sources returns this host's source addresses for packets to addresses. If nil,
	// [Follower.Sources] returns none.
	Sources func(to []netip.Addr) []netip.Addr
	// Sockets returns this host's listening sockets. If nil, programs' ports are not reserved.
	Sockets func() []sockets.Socket
	// Own returns the inodes of this process's sockets, whose ports are not reserved.
	Own func() map[string]bool
	// HTTP is the HOST:PORT on which this process serves HTTP, or "" if it serves none.
	HTTP string
	// Lookup returns the addresses of a host name. If nil, the system's resolver is used.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)
	// Resolver is the file that lists the name servers. The default is /etc/resolv.conf.
	Resolver string
}

// Follower tracks the reserved addresses and ports. Its methods are safe for concurrent use. A nil
// Follower and the zero value reserve nothing.
type Follower struct {
	o       Options
	members []netip.Addr            // addresses in etcd's URLs
	ports   []balancer.Reserved     // of etcd
	names   map[string][]netip.Addr // addresses of the host names in etcd's URLs; Run owns it
	taken   portTracker             // Run owns it
	now     atomic.Pointer[[]balancer.Reserved]
	sources atomic.Pointer[[]netip.Addr]
}

// New returns a Follower. It already reserves everything that can be found without contacting
// another host.
func New(o Options) *Follower {
	if o.Lookup == nil {
		o.Lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	o.Resolver = cmp.Or(o.Resolver, "/etc/resolv.conf")
	f := &Follower{o: o, names: map[string][]netip.Addr{}, taken: portTracker{o: o, seen: map[balancer.Key]time.Time{}}}
	ports := map[uint16]bool{etcdClients: true, etcdPeers: true}
	for _, endpoint := range o.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil || u.Hostname() == "" {
			continue // a Unix socket, or a mistake that the store reports
		}
		if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil && n > 0 {
			ports[uint16(n)] = true
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			f.members = append(f.members, a)
		} else if u.Hostname() != "localhost" {
			f.names[u.Hostname()] = nil
		}
	}
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		f.ports = append(f.ports, balancer.Reserved{Port: port, Proto: balancer.TCP, Etcd: true, Description: "it is one of etcd's ports"})
	}
	if host, port, err := net.SplitHostPort(o.HTTP); err == nil {
		at, _ := netip.ParseAddr(host) // the zero address, which stands for all addresses, if host is a name or empty
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			if at.IsUnspecified() {
				at = netip.Addr{}
			}
			f.ports = append(f.ports, balancer.Reserved{Addr: at, Port: uint16(n), Proto: balancer.TCP, Description: "vipd's own HTTP listener is there"})
		}
	}
	f.look()
	return f
}

// These ports are registered for etcd. They are always reserved, even while the local etcd member
// is down and does not listen on them.
const (
	etcdClients = 2379
	etcdPeers   = 2380
)

// All returns the reserved ports of etcd and vipd, then other programs' ports, and then the
// addresses.
func (f *Follower) All() []balancer.Reserved {
	if f == nil || f.now.Load() == nil {
		return nil
	}
	return *f.now.Load()
}

// Sources returns this host's source addresses for packets to the reserved addresses, and to
// destinations that are reached through the default route.
func (f *Follower) Sources() []netip.Addr {
	if f == nil || f.sources.Load() == nil {
		return nil
	}
	return *f.sources.Load()
}

// Run keeps the reserved addresses and ports up to date until ctx is done, and calls the function
// changed after each change. It returns ctx's error.
func (f *Follower) Run(ctx context.Context, changed func()) error {
	tick := time.NewTicker(routesEvery)
	defer tick.Stop()
	var asked time.Time
	for {
		if time.Since(asked) >= namesEvery || slices.ContainsFunc(slices.Collect(maps.Values(f.names)), func(of []netip.Addr) bool { return of == nil }) {
			asked = time.Now()
			f.lookup(ctx)
		}
		if f.look() {
			changed()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// lookup resolves etcd's host names. A name that can't be resolved keeps its previous addresses.
func (f *Follower) lookup(ctx context.Context) {
	for name := range f.names {
		limited, cancel := context.WithTimeout(ctx, lookupTime)
		if addresses, err := f.o.Lookup(limited, name); err == nil && len(addresses) > 0 {
			f.names[name] = addresses
		}
		cancel()
	}
}

// anywhere holds addresses that are reached through the default route, because they are reserved
// for documentation.
var anywhere = [...]string{"198.51.100.1", "2001:db8::1"}

// ofEtcd describes etcd's addresses.
const ofEtcd = "an address of etcd"

// look updates the reserved addresses and ports, and reports whether they have changed.
func (f *Follower) look() bool {
	reasons := map[netip.Addr]string{}
	note := func(all []netip.Addr, purpose string) {
		for _, a := range all {
			a = a.Unmap().WithZone("")
			if _, known := reasons[a]; !known && a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() {
				reasons[a] = purpose
			}
		}
	}
	note(f.members, ofEtcd)
	for _, addresses := range f.names {
		note(addresses, ofEtcd)
	}
	if len(f.names) > 0 {
		note(f.nameServers(), "a name server, which this node needs to find etcd")
	}
	to := slices.SortedFunc(maps.Keys(reasons), netip.Addr.Compare)
	for _, a := range anywhere {
		to = append(to, netip.MustParseAddr(a))
	}
	if f.o.Sources != nil {
		sources := f.o.Sources(to)
		f.sources.Store(&sources)
	}
	if f.o.Gateways != nil {
		note(f.o.Gateways(to), "a gateway of this node")
	}
	all := slices.Concat(f.ports, f.taken.look(time.Now()))
	for _, a := range slices.SortedFunc(maps.Keys(reasons), netip.Addr.Compare) {
		all = append(all, balancer.Reserved{Addr: a, Etcd: reasons[a] == ofEtcd, Description: reasons[a]})
	}
	if slices.Equal(all, f.All()) {
		return false
	}
	f.now.Store(&all)
	return true
}

// nameServers returns the name servers in the resolver's file, or none if the file can't be read.
func (f *Follower) nameServers() (all []netip.Addr) {
	text, _ := os.ReadFile(f.o.Resolver)
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == "nameserver" {
			if a, err := netip.ParseAddr(words[1]); err == nil {
				all = append(all, a)
			}
		}
	}
	return all
}
