package guard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/test/lab"
	testwait "vipd/test/wait"
)

// TestFullMeter sends a client's packet before and after other sources have filled the meter.
// Before, the meter must count the client, and FullLimits must not return the frontend. Afterwards,
// FullLimits must return it.
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
		t.Errorf("before the meter is full: FullLimits = %v, %v; want none", full, err)
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

// fillMeter empties an IPv4 meter, and then fills it with the addresses of sources other than the
// client.
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

// TestLimitsWithoutModules makes the limits trial fail, because another program owns the trial's
// table. The guard must work without limits and report the service. After a resync that succeeds,
// the limits must be in force.
func TestLimitsWithoutModules(t *testing.T) {
	lab.Require(t)
	conn, other := openTables(t), openTables(t)
	h := newHistory(t, 1, conn, dataplane.Needs{Forward: true})
	f := frontend("10.96.0.14:80", func(f *balancer.Frontend) {
		f.Limits = balancer.ClientLimits{Connections: 5, SourceRate: balancer.Rate{N: 5, Per: time.Second}, SourcePrefix: 24}
	})
	h.g.want(f, 1, false)
	trial := h.g.layout.table
	trial.Name += trialSuffix
	var claim, free nft.Tx
	claim.ClaimTable(trial)
	free.DeleteTable(trial)
	if err := other.Commit(&claim); err != nil {
		t.Fatal(err)
	}
	limited := func() bool {
		if err := h.g.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		there, err := conn.HasChain(h.g.layout.table, limiterOf(f).chain)
		if err != nil {
			t.Fatal(err)
		}
		return there
	}
	problems := func() []balancer.Problem { // without problems that name no service, which may come from the machine's iptables
		return slices.DeleteFunc(h.g.problems(), func(p balancer.Problem) bool { return p.Service == "" })
	}
	if limited() {
		t.Error("the chain for limits exists after the failed trial")
	}
	want := "limits are not enforced (ipv4): the kernel refuses rules of nft_limit and nft_connlimit: run modprobe -a nft_limit nft_connlimit and vipctl reload, or remove limits: "
	if p := problems(); len(p) != 1 || p[0].Service != f.Service || p[0].Field != "limits" || !strings.HasPrefix(p[0].Text, want) {
		t.Errorf("problems = %+v, want one problem for service %s: %s", p, f.Service, want)
	}
	if err := other.Commit(&free); err != nil {
		t.Fatal(err)
	}
	h.g.resync()
	if !limited() {
		t.Error("the chain for limits is missing after the resync")
	}
	if p := problems(); len(p) != 0 {
		t.Errorf("problems after the resync = %+v, want none", p)
	}
	h.g.want(f, -1, false)
	if err := h.g.finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}
