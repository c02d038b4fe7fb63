package userspace

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/inet"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestStaleFlowsAreRetried makes deletions of conntrack flows fail, so Apply must return an error.
// The next Apply must delete the flows.
func TestStaleFlowsAreRetried(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	f := w.frontendsAt(t, 80)[1]
	y := d.tables.(*redirect).families[inet.Of(f.Key.Addr)]
	y.cut = func(context.Context, map[balancer.Key]bool, func(*conntrack.Flow) bool) error { return unix.EPERM }
	c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = lab.AskWithin(c, 50*time.Millisecond) // creates a conntrack flow that is not redirected
	if err := d.tryApply(f); err == nil {
		t.Fatal("Apply = nil, want an error because flows were not deleted")
	}
	y.cut = cut
	d.apply(f)
	if len(y.stale) > 0 {
		t.Errorf("stale flows = %v, want none", y.stale)
	}
	eventually(t, "the answer", func() error { _, err := lab.AskWithin(c, 100*time.Millisecond); return err })
}

// TestYieldForgetsResetConnections resets a client's connection, and then makes the dataplane
// yield. A new connection from the same client port must immediately reach the next dataplane.
// Otherwise, conntrack would redirect the client for ten more seconds.
func TestYieldForgetsResetConnections(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	f := w.frontendsAt(t, 80)[0]
	d.apply(f)
	c, err := w.remote.Dial(t.Context(), "tcp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := lab.AskWithin(c, wait.Patience); err != nil {
		t.Fatal(err)
	}
	client := netip.MustParseAddrPort(c.LocalAddr().String())
	if n, err := d.Kill(t.Context(), dataplane.ConnectionQuery{Client: client}); n != 1 || err != nil {
		t.Fatalf("Kill = %d, %v; want 1 connection", n, err)
	}
	remembered := func() (state string) {
		conn, err := conntrack.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		err = conn.Each(t.Context(), conntrack.Filter{Proto: balancer.TCP, Dst: f.Key.Addr}, func(flow *conntrack.Flow) error {
			if flow.Client() == client {
				state = flow.State
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	wait.For(t, wait.Patience, "the reset", func() bool { return remembered() == "close" })
	if err := d.Yield(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state := remembered(); state != "" {
		t.Errorf("state of the connection in conntrack = %q, want no entry", state)
	}
}
