package probe

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
)

// TestFilesHang makes reads of certificate files hang. Neither other checks nor the return of Run
// may be delayed. All checks with the same files must share one read. The sleeps in this test use
// synctest's clock.
func TestFilesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &balancer.Health{
			Type: balancer.HTTPSHealth, CAFile: "/hangs/ca.pem", Interval: 2 * time.Second, FastInterval: time.Second, Timeout: time.Second, Rise: 1, Fall: 1,
		}
		other := *h
		other.CAFile = "/works/ca.pem"
		var looks atomic.Int32
		answer := make(chan error)
		hung, works := newFiles(h, nil), newFiles(&other, nil)
		works.read = func(*balancer.Health, *certificates) (*certificates, error) { return &certificates{}, nil }
		hung.read = func(*balancer.Health, *certificates) (*certificates, error) {
			looks.Add(1)
			return &certificates{}, <-answer
		}
		reported := snap.Map[balancer.Target, balancer.Verdict]{}
		r := NewRunner(Options{
			Report: func(changes []Transition) {
				for _, c := range changes {
					reported = reported.Set(c.Targets[0], c.State.Verdict)
				}
			},
			Check: func(ctx context.Context, p *Probe, _ netip.AddrPort) health.Result {
				of := map[string]*files{h.CAFile: hung, other.CAFile: works}[p.health.CAFile]
				return (&Probe{health: p.health, kind: func(_ *attempt, ctx context.Context) (string, error) {
					_, err := of.load(ctx)
					return "", err
				}}).Check(ctx, netip.AddrPort{})
			},
		})
		at := func(s balancer.Name, host byte) balancer.Target {
			return balancer.Target{Service: s, Addr: netip.AddrFrom4([4]byte{192, 168, 1, host}), Port: 443}
		}
		var wanted snap.Map[balancer.Target, health.Subject]
		for host := range byte(20) {
			for s, h := range map[balancer.Name]*balancer.Health{"hangs": h, "works": &other} {
				target := at(s, host)
				wanted = wanted.Set(target, health.Subject{At: netip.AddrPortFrom(target.Addr, target.Port), Proto: balancer.TCP, Health: h})
			}
		}
		r.Set(wanted)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { r.Run(ctx); close(over) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		for host := range byte(20) {
			if reported.At(at("works", host)) != balancer.HealthUp || reported.Has(at("hangs", host)) {
				t.Errorf("host %d: verdicts with working files = %v, with hanging files = %v; want up, none", host, reported.At(at("works", host)), reported.At(at("hangs", host)))
			}
			if s, _ := r.Status(at("hangs", host)); s.State.Last.Outcome != health.NotRun {
				t.Errorf("host %d with hanging files: result = %+v, want not run", host, s.State.Last)
			}
		}
		answer <- errors.New("the server is back, the file is not")
		time.Sleep(time.Minute)
		answer <- nil
		time.Sleep(500 * time.Millisecond)
		if n := looks.Load(); n > 3 {
			t.Errorf("reads of the file system = %d, want at most 3", n)
		}
		cancel()
		synctest.Wait()
		select {
		case <-over:
		default:
			t.Error("Run waits until a file is read, want it to return")
		}
		close(answer) // makes the last read return
	})
}
