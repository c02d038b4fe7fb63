package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/test/lab"
	testwait "vipd/test/wait"
)

// TestFullMeter fills a meter with other sources, and opens a connection. The frontend must be
// reported. Before, it must not be reported, and the meter must count the client.
func TestFullMeter(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	l := lab.New(t)
	client := l.Add("client")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24")
	client.Route("10.96.0.0/16", "10.1.0.1")
	f := frontend("10.96.0.14:80/udp", func(f *balancer.Frontend) {
		f.Limits = balancer.ClientLimits{SourceRate: balancer.Rate{N: 1000, Per: time.Hour}, SourcePrefix: 32}
	})
	nftables(t, Render(Options{Mode: dataplane.Needs{Forward: true}, MasqueradeBit: 14}, []*balancer.Frontend{f}, nil), "-f", "-")
	t.Cleanup(func() { nftables(t, "", "flush", "ruleset") })
	send := func() {
		c, err := client.DialFrom(t.Context(), "udp", netip.AddrPort{}, f.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	counted := func() bool {
		objects, _, err := Explain(f, addrOf("10.1.0.2"))
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(objects, func(o dataplane.Object) bool { return o.Says == "counts connections of 10.1.0.2/32" })
	}
	send()
	testwait.For(t, testwait.Patience, "the meter to count the client", counted)
	if full, err := FullLimits(); err != nil || len(full) > 0 {
		t.Errorf("FullLimits before the meter is full = %v, %v; want none", full, err)
	}
	fillMeter(t, limiterOf(f).meters()[0])
	send()
	testwait.For(t, testwait.Patience, "the frontend to be reported", func() bool {
		full, err := FullLimits()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(full, []balancer.Key{f.Key})
	})
}

// fillMeter replaces the elements of an IPv4 meter by as many other sources as it can hold.
func fillMeter(t *testing.T, m meter) {
	t.Helper()
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	table := newLayout(inet.IPv4).table
	elems := make([]nft.Elem, maxSources)
	for i := range elems {
		elems[i].Key = nft.Bytes{}.Addr(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}))
	}
	var tx nft.Tx
	tx.FlushSet(table, m.set)
	if err := conn.Commit(&tx); err != nil {
		t.Fatal(err)
	}
	tx = nft.Tx{}
	tx.Add(table, m.set, elems...)
	if err := conn.Commit(&tx); err != nil {
		t.Fatal(fmt.Errorf("filling %s: %w", m.set.Name, err))
	}
}
