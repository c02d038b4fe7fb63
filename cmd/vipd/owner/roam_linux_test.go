package owner

import (
	"fmt"
	"io"
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

// roams is a VIP whose endpoints have inner, of the same group, for their gateway.
var roams, inner = netip.MustParseAddr("10.9.0.101"), netip.MustParseAddr("10.8.0.101")

const roaming = `
[vips."10.9.0.101"]
hold = "one"
group = "roams"
[vips."10.8.0.101"]
hold = "one"
group = "roams"
[services.roams]
vips = ["10.9.0.101"]
scheduler = "mh"
ports = [{ port = 9000, target_port = 9001 }]
endpoints = [{ address = "10.8.0.31" }, { address = "10.8.0.32" }, { address = "10.8.0.33" }]
`

// TestConnectionsGoOn: open connections to a VIP whose hosts choose endpoints alike go on at the next owner, whether the client alone
// talks or both sides do.
func TestConnectionsGoOn(t *testing.T) {
	for mode, more := range map[string]string{"nftables": "", "iptables": "", "legacy": "iptables.backend = \"legacy\"\n"} {
		t.Run(mode, func(t *testing.T) {
			in := mode
			if mode == "legacy" {
				in = "iptables"
			}
			f := newFleet(t, in, etcdkit.Options{}, more, roaming)
			endpoints := f.lab.Add("endpoints")
			f.other.Join(endpoints, "10.8.0.31/24", "10.8.0.32/24", "10.8.0.33/24")
			endpoints.Exec("ip", "route", "add", "default", "via", inner.String())
			talk(t, endpoints)
			f.goesOn(planned)
			f.goesOn(killed)
		})
	}
}

// talk has a host answer what connections say; on those that begin with b it talks all the time, too.
func talk(t *testing.T, ns *lab.NS) {
	t.Helper()
	l, err := ns.Listen("tcp", fmt.Sprintf(":%d", ownPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 1)
				if _, err := c.Read(b); err == nil && b[0] == 'b' {
					go chatter(c)
				}
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// chatter says something on a connection every 20 ms until that fails.
func chatter(c net.Conn) {
	for {
		if _, err := c.Write([]byte(".")); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// line is an open connection.
type line struct {
	net.Conn
	both  bool
	heard atomic.Int64 // bytes
	ended atomic.Pointer[error]
}

func (l *line) listen() {
	b := make([]byte, 1000)
	for {
		n, err := l.Read(b)
		l.heard.Add(int64(n))
		if err != nil {
			l.ended.Store(&err)
			return
		}
	}
}

// lines opens connections to the VIP, of which every second one is talked on by both sides all the time.
func (f *fleet) lines(n int) (all []*line) {
	f.t.Helper()
	for i := range n {
		l := &line{both: i%2 == 1}
		lab.Eventually(f.t, 10*time.Second, "a connection", func() (err error) {
			l.Conn, err = f.client.Dial(f.t.Context(), "tcp", netip.AddrPortFrom(roams, probePort).String())
			return err
		})
		f.t.Cleanup(func() { _ = l.Close() })
		first := "c"
		if l.both {
			first = "b"
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
	return all
}

// goesOn has the owner meet a fault: what was open then goes on.
func (f *fleet) goesOn(c fault) {
	f.t.Helper()
	f.settled()
	has := func() (owner *gateway) {
		for _, g := range f.hosts {
			if all := g.bound(); slices.Contains(all, roams) && slices.Contains(all, inner) {
				owner = g
			}
		}
		return owner
	}
	var g *gateway
	wait.For(f.t, etcdkit.Patience, "an owner of "+roams.String(), func() bool { g = has(); return g != nil })
	const n = 40
	all := f.lines(n)
	if c.name == planned.name {
		g.vipctl("vip", "move", roams.String())
	} else {
		c.fault(g)
	}
	wait.For(f.t, etcdkit.Patience, "another owner after "+c.name, func() bool { o := has(); return o != nil && o != g })
	before := make([]int64, n)
	for i, l := range all {
		before[i] = l.heard.Load()
		if !l.both {
			_, _ = l.Write([]byte("?"))
		}
	}
	wait.For(f.t, etcdkit.Patience, "connections to go on or end", func() bool {
		return !slices.ContainsFunc(all, func(l *line) bool { return l.ended.Load() == nil && l.heard.Load() == before[slices.Index(all, l)] })
	})
	for i, l := range all {
		if err := l.ended.Load(); err != nil {
			f.t.Errorf("%s: connection %d, on which both sides talk: %t, ended: %v", c.name, i, l.both, *err)
		}
	}
	c.mend(g)
}
