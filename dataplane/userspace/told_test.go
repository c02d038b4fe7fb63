package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/wait"
)

// dials collects what is told of them.
type dials struct {
	mu   sync.Mutex
	told map[netip.AddrPort][]error
}

func (d *dials) tell(t balancer.Target, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t.Service != "web" {
		err = fmt.Errorf("told of service %q", t.Service)
	}
	at := netip.AddrPortFrom(t.Addr, t.Port)
	d.told[at] = append(d.told[at], err)
}

func (d *dials) of(at netip.AddrPort) []error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.told[at]
}

// listenTo has what comes of dials collected.
func listenTo(d *rig) *dials {
	told := &dials{told: map[netip.AddrPort][]error{}}
	d.TellDials(told.tell)
	return told
}

// wantTold asks until the last that is told of a backend is an error that is want; nil means a success.
func wantTold(t *testing.T, told *dials, at netip.AddrPort, want error, ask func()) {
	t.Helper()
	eventually(t, fmt.Sprintf("%v to be told of %s", want, at), func() error {
		ask()
		all := told.of(at)
		if len(all) == 0 || !errors.Is(all[len(all)-1], want) {
			return fmt.Errorf("told is %v", all)
		}
		return nil
	})
}

// TestDialsAreTold checks that each failure is told with its cause, and the first success after it, and nothing of backends
// that never failed.
func TestDialsAreTold(t *testing.T) {
	good, bad := serveAt(t, "127.0.0.1:0", named("good")), serveAt(t, "127.0.0.1:0", named("bad"))
	bad.stop()
	d := start(t, Options{})
	told := listenTo(d)
	f := frontendAt("127.77.9.1:9000", good.addr, bad.addr)
	d.apply(f)
	ask := func() {
		if _, err := askOnce(f.AddrPort(), ""); err != nil {
			t.Error(err)
		}
	}
	wantTold(t, told, bad.addr, syscall.ECONNREFUSED, ask)
	serveAt(t, bad.addr.String(), named("bad"))
	wantTold(t, told, bad.addr, nil, ask)
	n := len(told.of(bad.addr))
	for range 20 {
		ask()
	}
	if all := told.of(bad.addr); len(all) != n {
		t.Errorf("told while all is well: %v", all[n:])
	}
	if all := told.of(good.addr); len(all) > 0 {
		t.Errorf("told of the good one: %v", all)
	}
}

// TestMissedEndsAreCounted: a follower that is too slow hears how many connections ended that it was not told of.
func TestMissedEndsAreCounted(t *testing.T) {
	const begins, ends = 100, 3 * followerBuffer
	d := start(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	slow, proceed := make(chan bool, 1), make(chan bool)
	told, lost := 0, uint64(0)
	var following sync.WaitGroup
	following.Go(func() {
		err := d.Follow(ctx, func(began bool, _ *dataplane.Connection) {
			if began {
				slow <- true
				<-proceed
				return
			}
			told++
		}, func(ends uint64) { lost += ends })
		if err != nil {
			t.Error(err)
		}
	})
	wait.For(t, wait.Patience, "a follower", d.followers.some)
	d.followers.tell(news{began: true})
	<-slow
	for range ends {
		d.followers.tell(news{})
	}
	for range begins { // all are missed, and are no ends
		d.followers.tell(news{began: true})
	}
	cancel()
	close(proceed)
	following.Wait()
	if told == 0 || lost == 0 || uint64(told)+lost != ends {
		t.Errorf("of %d ends, %d are told and %d called lost", ends, told, lost)
	}
}

// TestEjectedIsTheLastResort checks that a backend that is ejected is left alone, and serves when every other refuses.
func TestEjectedIsTheLastResort(t *testing.T) {
	other, backup, ejected := serveAt(t, "127.0.0.1:0", named("other")), serveAt(t, "127.0.0.1:0", named("backup")), serveAt(t, "127.0.0.1:0", named("ejected"))
	d := start(t, Options{})
	f := with(frontendAt("127.77.9.3:9000", other.addr, backup.addr, ejected.addr), func(f *balancer.Frontend) {
		for i := range f.Backends {
			b := &f.Backends[i]
			switch b.Addr {
			case backup.addr:
				b.State, b.Weight = balancer.Standby, 0
			case ejected.addr:
				b.State, b.Weight = balancer.Ejected, 0
			}
		}
	})
	d.apply(f)
	wantAll := func(want string) {
		t.Helper()
		for range 20 {
			if name, err := askOnce(f.AddrPort(), ""); err != nil || name != want {
				t.Fatalf("got %q, %v; want %s", name, err, want)
			}
		}
	}
	wantAll("other")
	other.stop()
	wantAll("backup")
	backup.stop()
	wantAll("ejected")
}

// TestSilentUDPBackendsComeBack: one that never answers, as a log server, has its share again once nothing is refused.
func TestSilentUDPBackendsComeBack(t *testing.T) {
	silent, stop := startUDPServer(t, "127.0.0.1:0", "silent")
	stop()
	d := start(t, Options{})
	told := listenTo(d)
	f := frontendAt("127.77.9.9:9000/udp", silent)
	d.apply(f)
	ask := func() {
		c := udpClient(t, f.AddrPort())
		_, _ = c.Write([]byte("x"))
		_ = c.Close()
	}
	wantTold(t, told, silent, syscall.ECONNREFUSED, ask)
	back, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(silent)) // nobody reads
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	wantTold(t, told, silent, nil, ask)
}
