package userspace

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
)

// TestLoopsTakeNoConnections applies services whose endpoints are their own VIPs or each other's
// VIPs. Without protection, a single connection would use up all descriptors. These services must
// reset their clients, but a service whose endpoint is the VIP of a service with a real server must
// work.
func TestLoopsTakeNoConnections(t *testing.T) {
	s, u := serveAt(t, "127.0.0.1:0", named("a")), udpServer(t, "127.0.0.1:0", "a")
	d := start(t, Options{maxDescriptors: 200})
	at := netip.MustParseAddrPort
	own := frontendAt("127.77.8.11:9000/tcp", at("127.77.8.11:9000"))
	one := frontendAt("127.77.8.12:9000/tcp", at("127.77.8.13:9000"))
	two := frontendAt("127.77.8.13:9000/tcp", at("127.77.8.14:9000"))
	three := frontendAt("127.77.8.14:9000/tcp", at("127.77.8.12:9000"))
	chain := frontendAt("127.77.8.15:9000/tcp", at("127.77.8.16:9000"))
	end := frontendAt("127.77.8.16:9000/tcp", s.addr)
	round, back := frontendAt("127.77.8.12:9000/udp", at("127.77.8.13:9000")), frontendAt("127.77.8.13:9000/udp", at("127.77.8.12:9000"))
	through, out := frontendAt("127.77.8.15:9000/udp", at("127.77.8.16:9000")), frontendAt("127.77.8.16:9000/udp", u)
	d.apply(own, one, two, three, chain, end, round, back, through, out)
	before := d.budget.used.Load()
	for _, f := range []*balancer.Frontend{own, one, two, three} {
		if c, err := connect(f.AddrPort(), ""); err == nil {
			wantReset(t, c)
		} else if !isReset(err) {
			t.Errorf("client of %s: error = %v, want a reset", f.Key, err)
		}
	}
	if answer, err := askOnce(chain.AddrPort(), ""); err != nil || answer != "a" {
		t.Errorf("answer through two services = %q, %v; want a", answer, err)
	}
	packet := udpClient(t, round.AddrPort())
	if _, err := packet.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := askUDP(udpClient(t, through.AddrPort()), "x"); err != nil {
		t.Errorf("datagram through two services: error = %v, want nil", err)
	}
	eventually(t, "the end of connections", func() error {
		if used := d.budget.used.Load(); used > before+2 { // the datagram used two flows
			return fmt.Errorf("used descriptors = %d, previously %d; want at most 2 more", used, before)
		}
		return nil
	})
	d.apply(frontendAt("127.77.8.14:9000/tcp", s.addr)) // gives this service a real server, which breaks the loop
	eventually(t, "the chain", func() error {
		_, err := askOnce(one.AddrPort(), "")
		return err
	})
}

// TestChainsLaw builds random sets of frontends, some of whose backends are other frontends. It
// removes a frontend from some of the sets. leadBack must always agree with a search of all paths.
func TestChainsLaw(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, 9, byte(i)}), 80)
	}
	const n = 6
	for step := range 2000 {
		c := chains{frontends: map[balancer.Key]*frontend{}}
		var to [n][n]bool
		for i := range n {
			var backends []netip.AddrPort
			for j := range n {
				if r.IntN(5) == 0 {
					to[i][j] = true
					backends = append(backends, at(j))
				}
			}
			f := &frontend{key: keyAt(at(i), balancer.TCP)}
			f.conf.Store(&config{Frontend: &balancer.Frontend{Key: f.key}})
			for _, b := range backends {
				f.conf.Load().Backends = append(f.conf.Load().Backends, balancer.Backend{Addr: b, State: balancer.Active})
			}
			c.add(f)
		}
		if gone := r.IntN(2 * n); gone < n { // removes the frontend again
			c.remove(c.frontends[keyAt(at(gone), balancer.TCP)])
			for i := range n {
				to[gone][i], to[i][gone] = false, false
			}
		}
		reach := to
		for k := range n {
			for i := range n {
				for j := range n {
					reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
				}
			}
		}
		for i := range n {
			for j := range n {
				want := to[i][j] && (i == j || reach[j][i])
				if got := to[i][j] && c.leadBack(keyAt(at(i), balancer.TCP), at(j)); got != want {
					t.Fatalf("seed %d, step %d: leadBack(%d, %d) = %v, want %v; edges = %v", seed, step, i, j, got, want, to)
				}
			}
		}
	}
}

// TestSlowClientsOfOneServiceLeaveRoomForOthers keeps many clients connected to one service. They
// must not use more descriptors than the service's share, so a client of another service can be
// served.
func TestSlowClientsOfOneServiceLeaveRoomForOthers(t *testing.T) {
	s := serveAt(t, "127.0.0.1:0", named("a"))
	d := start(t, Options{maxDescriptors: 100})
	slow := []*balancer.Frontend{frontendAt("127.77.8.17:9000/tcp", s.addr), frontendAt("127.77.8.18:9000/tcp", s.addr)}
	good := frontendAt("127.77.8.19:9000/tcp", s.addr)
	good.Service = "good"
	d.apply(slow[0], slow[1], good)
	for range 60 { // many more than the share; waiting clients use no descriptors
		for _, f := range slow {
			mustConnect(t, f.AddrPort())
		}
	}
	eventually(t, "the bound", func() error {
		if used := d.budget.used.Load(); d.budget.limit-used > 30 {
			return fmt.Errorf("used descriptors = %d, want at most 30 fewer than the limit", used)
		}
		return nil
	})
	for range 10 {
		if answer, err := askOnce(good.AddrPort(), ""); err != nil || answer != "a" {
			t.Fatalf("answer of another service = %q, %v; want \"a\"; used descriptors = %d", answer, err, d.budget.used.Load())
		}
	}
}
