package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
)

func TestTrialLeavesNothing(t *testing.T) {
	k := newKernel()
	p := start(t, k, t.TempDir())
	ops := p.sent(func() {
		if err := p.try(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if len(ops) != 6 || len(p.unavailable) > 0 {
		t.Errorf("trial sent messages %v, want 6; unavailable = %v, want none", ops, p.unavailable)
	}
	if got := k.text(t, every); got != "" || !p.ledger.empty() {
		t.Errorf("virtual servers and ledger entries after the trial =\n%s%v\nwant none", got, p.ledger.entries)
	}
	if p.Traits().Detail != "" {
		t.Errorf("Detail = %q, want no missing features", p.Traits().Detail)
	}
}

// TestTrialCutShort interrupts a trial. The next trial must remove the first trial's virtual
// server, and no other.
func TestTrialCutShort(t *testing.T) {
	k := newKernel()
	p := start(t, k, t.TempDir())
	cut := ipvsnl.Verb(0)
	k.lose = func(op ipvsnl.Op) (bool, bool) { return op.Verb != cut, op.Verb != cut }
	cut = ipvsnl.DeleteService
	if err := p.try(t.Context()); !errors.Is(err, ipvsnl.ErrNoAnswer) {
		t.Fatalf("trial: error = %v, want ErrNoAnswer", err)
	}
	cut = 0
	p.restart(true)
	if err := p.try(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := k.text(t, every); got != "" {
		t.Errorf("virtual servers after the next trial =\n%s\nwant none", got)
	}
	theirs := []ipvsnl.Op{{Verb: ipvsnl.AddService, Service: ipvsnl.Service{Key: balancer.Key{Addr: trialKey(inet.IPv4).Addr, Port: 9, Proto: balancer.TCP}, Scheduler: "rr"}}}
	if errs := k.Do(t.Context(), theirs); errs != nil {
		t.Fatal(errs)
	}
	before := k.text(t, every)
	if err := p.try(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := k.text(t, every); got != before {
		t.Errorf("virtual servers before the trial =\n%safterwards =\n%swant the same", before, got)
	}
}

// TestOneFamilyMissing uses a kernel whose IPVS does not support IPv6. IPv6 frontends must fail,
// and all IPv4 frontends must be served.
func TestOneFamilyMissing(t *testing.T) {
	k := newKernel()
	k.Fault = func(op ipvsnl.Op) error {
		if op.Service.Key.Addr.Is6() {
			return syscall.EAFNOSUPPORT
		}
		return nil
	}
	p := start(t, k, t.TempDir())
	if err := p.try(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.observe()
	var each dataplane.KeyErrors
	err := p.Apply(t.Context(), changes(web(key(0), 1), web(key(3), 1)))
	if !errors.As(err, &each) || len(each) != 1 || each[key(3)] == nil || !strings.Contains(p.Traits().Detail, "ipv6") {
		t.Errorf("Apply = %v, Detail = %q; want an error for the IPv6 frontend, and ipv6 in Detail", err, p.Traits().Detail)
	}
	if err := p.Apply(t.Context(), []dataplane.Change{{Key: key(3)}}); err != nil {
		t.Errorf("removing a missing frontend: error = %v, want nil", err)
	}
	k.Fault = func(ipvsnl.Op) error { return syscall.EPERM }
	if err := start(t, k, t.TempDir()).try(t.Context()); err == nil {
		t.Error("trial without a working family: error = nil, want an error")
	}
}

// TestMissingSchedulers uses a kernel that lacks some schedulers. Each must be replaced with the
// nearest existing scheduler, and Detail must name the missing ones.
func TestMissingSchedulers(t *testing.T) {
	open := func(schedulers ...string) (*Dataplane, error) {
		k := newKernel()
		k.Schedulers = schedulers
		l, err := openLedger(t.TempDir(), "boot", "namespace")
		if err != nil {
			t.Fatal(err)
		}
		return newDataplane(context.Background(), k, carried(), l, slog.New(slog.DiscardHandler))
	}
	d, err := open("rr", "lc", "sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range balancer.Scheduler("").Values() {
		instead, nearest := d.Capabilities().Nearest[balancer.Scheduler(name)]
		switch has := name == "rr" || name == "lc" || name == "sh"; {
		case has == nearest, nearest && instead != balancer.RoundRobin:
			t.Errorf("%s: substitute = %q, nearest = %v; want round robin only for a missing scheduler", name, instead, nearest)
		case !has && name != "random" && !strings.Contains(d.Traits().Detail, fmt.Sprint("scheduler ", name)):
			t.Errorf("the missing scheduler %s is not in Detail: %s", name, d.Traits().Detail)
		}
	}
	if d.Capabilities().Nearest[balancer.Maglev] == "" || len(Capabilities().Nearest) != 1 {
		t.Error("the missing schedulers are not in this dataplane's Nearest alone")
	}
	if _, err := open("fo"); err == nil || !strings.Contains(err.Error(), "modprobe") {
		t.Errorf("without schedulers: error = %v, want advice to use modprobe", err)
	}
}
