package userspace

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

func TestWhatIsToBeForgottenIsKept(t *testing.T) {
	w := newTown(t)
	w.serve()
	d := redirecting(t)
	f := w.four(t, 80)[1]
	y := d.tables.(*redirect).families[xtables.FamilyOf(f.Key.Addr)]
	y.forgetFlows = func(context.Context, map[balancer.Key]bool) error { return unix.EPERM }
	c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = lab.AskWithin(c, 50*time.Millisecond) // conntrack knows it as not redirected, if it knows it
	if err := d.tryApply(f); err == nil {
		t.Fatal("it succeeded though flows are remembered")
	}
	y.forgetFlows = forgetFlows
	d.apply(f)
	if len(y.stale) > 0 {
		t.Errorf("%v are still to be forgotten", y.stale)
	}
	eventually(t, "the answer", func() error { _, err := lab.AskWithin(c, 100*time.Millisecond); return err })
}
