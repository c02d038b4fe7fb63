package owner

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/wait"
)

// roaming lists a group's VIPs. The last two are the endpoints' gateways.
var roaming = []netip.Addr{
	netip.MustParseAddr("10.9.0.101"), netip.MustParseAddr("fd09::101"), netip.MustParseAddr("10.8.0.101"), netip.MustParseAddr("fd08::101"),
}

// roams defines frontends for which all hosts choose the same endpoints. Some VIPs have a single
// owner; they cover two schedulers, and both IPv4 and IPv6. The last VIP is on every host, and the
// client reaches it through the owner.
const roams = `
[vips]
"10.9.0.101" = { hold = "one", group = "roams" }
"fd09::101" = { hold = "one", group = "roams" }
"10.8.0.101" = { hold = "one", group = "roams" }
"fd08::101" = { hold = "one", group = "roams" }
"10.96.0.2" = { withdraw = "no_endpoint" }
[services.maglev]
vips = ["10.9.0.101", "fd09::101", "10.96.0.2"]
scheduler = "mh"
ports = [{ port = 9000, target_port = 9001 }]
endpoints = [
    { address = "10.8.0.31" }, { address = "10.8.0.32" }, { address = "10.8.0.33" },
    { address = "fd08::31" }, { address = "fd08::32" }, { address = "fd08::33" },
]
[services.source]
vips = ["10.9.0.101"]
scheduler = "sh"
ports = [{ port = 9002, target_port = 9001 }]
endpoints = [{ address = "10.8.0.31" }, { address = "10.8.0.32" }, { address = "10.8.0.33" }]
`

// roamers is the number of clients for each frontend. Hosts choose endpoints by client address, and
// there are enough clients for each endpoint.
const roamers = 8

// TestConnectionsGoOn moves a VIP for which all hosts choose the same endpoints, and then kills its
// owner. Open connections must continue at the next owner, whether only the client sends or both
// sides send.
func TestConnectionsGoOn(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) { connectionsGoOn(t, mode) })
	}
}

// TestIPVSConnectionsGoOn runs TestConnectionsGoOn in ipvs mode.
func TestIPVSConnectionsGoOn(t *testing.T) {
	lab.NeedIPVS(t)
	connectionsGoOn(t, "ipvs")
}

// connectionsGoOn moves the VIPs of open connections, and then kills their owner.
func connectionsGoOn(t *testing.T, mode string) {
	f := newFleet(t, mode, etcdkit.Options{}, "", roams)
	endpoints := f.lab.Add("endpoints")
	f.other.Join(endpoints, "10.8.0.31/24", "10.8.0.32/24", "10.8.0.33/24", "fd08::31/64", "fd08::32/64", "fd08::33/64")
	endpoints.Default("10.8.0.101", "fd08::101")
	respond(t, endpoints)
	for _, g := range f.hosts {
		g.ns.Sysctl("net.ipv6.conf.all.forwarding", "1")
	}
	for i := range roamers {
		f.client.AddAddr("lan", fmt.Sprintf("10.9.0.%d/16", 60+i))
		f.client.AddAddr("lan", fmt.Sprintf("fd09::%d/64", 60+i))
	}
	f.client.Route("10.96.0.2/32", "10.9.0.101")
	f.wantConnectionsContinue(planned)
	f.wantConnectionsContinue(killed)
}

type line struct {
	net.Conn
	to       string
	both     bool
	received atomic.Int64 // bytes received
	ended    atomic.Pointer[error]
}

func (l *line) listen() {
	b := make([]byte, 1000)
	for {
		n, err := l.Read(b)
		l.received.Add(int64(n))
		if err != nil {
			l.ended.Store(&err)
			return
		}
	}
}

// lines opens connections to all frontends in roams. On every second connection, both sides send
// constantly.
func (f *fleet) lines() (all []*line) {
	f.t.Helper()
	for _, to := range []string{"10.9.0.101:9000", "10.9.0.101:9002", "[fd09::101]:9000", "10.96.0.2:9000"} {
		for i := range roamers {
			l := &line{to: to, both: i%2 == 1}
			from := "10.9.0."
			if to[0] == '[' {
				from = "fd09::"
			}
			lab.Eventually(f.t, 10*time.Second, "a connection to "+to, func() (err error) {
				l.Conn, err = f.client.DialFrom(f.t.Context(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprint(from, 60+i)), 0), to)
				return err
			})
			f.t.Cleanup(func() { _ = l.Close() })
			first := "c"
			if l.both {
				first = talkative
			}
			if _, err := l.Write([]byte(first)); err != nil {
				f.t.Fatal(err)
			}
			go l.listen()
			if l.both {
				go chatter(l.Conn)
			}
			all = append(all, l)
		}
	}
	return all
}

// wantConnectionsContinue injects a fault into the owner. Open connections must continue.
func (f *fleet) wantConnectionsContinue(c fault) {
	f.t.Helper()
	f.waitForOwner()
	has := func() (owner *gateway) {
		for _, g := range f.hosts {
			if all := g.bound(); !slices.ContainsFunc(roaming, func(v netip.Addr) bool { return !slices.Contains(all, v) }) {
				owner = g
			}
		}
		return owner
	}
	var g *gateway
	wait.For(f.t, wait.Patience, "an owner of all roaming VIPs", func() bool { g = has(); return g != nil })
	all := f.lines()
	wait.For(f.t, wait.Patience, "an answer on each connection", func() bool {
		return !slices.ContainsFunc(all, func(l *line) bool { return l.received.Load() == 0 })
	})
	if c.name == planned.name {
		g.move(roaming[0].String())
	} else {
		c.fault(g)
	}
	wait.For(f.t, wait.Patience, "another owner after "+c.name, func() bool { o := has(); return o != nil && o != g })
	before := make([]int64, len(all))
	for i, l := range all {
		before[i] = l.received.Load()
		if !l.both {
			_, _ = l.Write([]byte("?"))
		}
	}
	wait.For(f.t, wait.Patience, "connections to continue or end", func() bool {
		return !slices.ContainsFunc(all, func(l *line) bool { return l.ended.Load() == nil && l.received.Load() == before[slices.Index(all, l)] })
	})
	for _, l := range all {
		if err := l.ended.Load(); err != nil {
			f.t.Errorf("%s: connection to %s (both sides send = %t): error = %v, want none", c.name, l.to, l.both, *err)
		}
	}
	c.repair(g)
}
