package doctor

import (
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

func TestFindingsOfAddresses(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "an address that nobody holds", change: func(m *fakeHost) {
			m.Status.Addresses = []api.Address{{Address: "10.96.0.10", Held: "none", Note: "no such device"}}
		}, want: []string{"traffic: problem: 10.96.0.10 is not on this host (no such device)"}},
		{name: "an address of somebody else", change: func(m *fakeHost) {
			m.Status.Addresses, m.Config.Addresses.Bind = []api.Address{{Address: "10.96.0.10", Held: "none"}, {Address: "10.96.0.11", Held: "none"}}, false
		}, want: []string{"traffic: note: 10.96.0.10, 10.96.0.11 are not here: bind is false, so another program must add it"}},
		{name: "no services", change: func(m *fakeHost) { m.Status.Addresses, m.Frontends = nil, nil }, want: []string{"traffic: note: there are no services yet, so their traffic is unknown"}},
	})
}

// TestArrival examines VIPs that are held in different ways. The finding must describe how traffic
// reaches each VIP.
func TestArrival(t *testing.T) {
	for _, test := range []struct{ name, vip, device, held, want string }{
		{"held", "10.96.0.10", "vipd0", "vipd0", "10.96.0.10 is held on vipd0: reachable from programs on this host, and from other hosts that have a route to it"},
		{"on a real device", "192.168.1.77", "eth0", "eth0", "192.168.1.77 is held on eth0: this host answers ARP or NDP for it there"},
		{"owned", "192.168.1.100", "vipd0", "owned", "192.168.1.100 is owned by this host (eth0), which answers ARP or NDP for it"},
		{"owned by another host", "192.168.1.101", "vipd0", "owned elsewhere", "192.168.1.101 is not owned by this host"},
		{"the host's own", "192.168.1.100", "vipd0", "host", "192.168.1.100 is the host's own (eth0): every client that reaches the host also reaches this address"},
		{"loopback", "127.0.3.1", "vipd0", "host", "127.0.3.1 is on this host's loopback: only programs on this host reach it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newFakeHost()
			m.Config.Addresses.Interface, m.Frontends = test.device, nil
			m.frontend(test.vip+":80/tcp", false)
			m.frontend("192.168.1.5:30080/tcp", true)
			a := api.Address{Address: test.vip, Held: test.held}
			switch test.held {
			case "owned":
				a.Held, a.Owned = "host", true
			case "owned elsewhere":
				a.Held, a.Owned, a.Note = "none", true, "not owned by this host"
			}
			m.Status.Addresses = []api.Address{a}
			m.wantArrival(t, OK, test.want)
		})
	}
}

// TestArrivalAmongNeighbours examines a VIP on vipd0 that is in eth0's network. The finding must
// say that no host answers for the VIP, unless this host answers ARP requests on every device.
func TestArrivalAmongNeighbours(t *testing.T) {
	m := newFakeHost()
	m.Frontends, m.Status.Addresses = nil, []api.Address{{Address: "192.168.1.77", Held: "vipd0"}}
	m.frontend("192.168.1.77:80/tcp", false)
	m.wantArrival(t, Warning, "192.168.1.77 is held on vipd0, and in the network of eth0: clients there don't reach it, because no host answers their ARP or NDP requests for it")
	m.files["/proc/sys/net/ipv4/conf/all/arp_ignore"] = "0"
	m.wantArrival(t, OK, "192.168.1.77 is held on vipd0: reachable from programs on this host, and from other hosts that have a route to it")
}

// TestRouteAvoidsLoopback adds another address to lo. The recommended route must use the address of
// a NIC as its gateway, because other hosts can't resolve addresses on lo.
func TestRouteAvoidsLoopback(t *testing.T) {
	m := newFakeHost()
	nics, _ := m.Interfaces()
	nics[0].Addrs = []netip.Addr{netip.MustParseAddr("10.9.9.9")}
	m.Interfaces = func() ([]Interface, error) { return nics, nil }
	all := Examine(t.Context(), m.Host)
	if got, want := all[len(all)-1].Fix, "ip route add 10.96.0.10 via 192.168.1.5  # on those other hosts, or on their router"; got != want {
		t.Errorf("command = %q, want %q", got, want)
	}
}

// wantArrival requires that the last finding, which is about the VIPs' traffic, has the level and
// the text.
func (m *fakeHost) wantArrival(t *testing.T, level Level, want string) {
	t.Helper()
	all := Examine(t.Context(), m.Host)
	last := all[len(all)-1]
	if last.What != want || last.Level != level {
		t.Errorf("finding = %s %q, want %s %q", last.Level, last.What, level, want)
	}
	if strings.Contains(last.Fix, "VIP") || strings.Contains(last.Fix, "THIS-HOST") {
		t.Errorf("command = %s, want no placeholder", last.Fix)
	}
}

// TestArrivalWithoutDaemon examines hosts without a running vipd. Findings must use the ledger and
// the configuration, and must not guess.
func TestArrivalWithoutDaemon(t *testing.T) {
	for _, test := range []struct {
		name, vip, device string
		change            func(m *fakeHost)
		level             Level
		want              string
	}{
		{"killed", "192.168.1.100", "vipd0", func(m *fakeHost) { m.put[netip.MustParseAddr("192.168.1.100")] = "eth0" }, OK,
			"192.168.1.100 is held on eth0 by a vipd that does not answer: this host answers ARP or NDP for it there"},
		{"killed, on lo", "10.96.0.10", "vipd0", func(m *fakeHost) {
			a := netip.MustParseAddr("10.96.0.10")
			m.put[a] = "lo"
			m.Interfaces = func() ([]Interface, error) {
				return []Interface{{Name: "lo", Addrs: []netip.Addr{a}}, {Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.5")}}}, nil
			}
		}, OK, "10.96.0.10 is held on lo by a vipd that does not answer: reachable from programs on this host, and from other hosts that have a route to it"},
		{"killed, and gone since", "10.96.0.10", "vipd0", func(m *fakeHost) { m.put[netip.MustParseAddr("10.96.0.10")] = "lo" }, OK,
			"10.96.0.10 is not here yet: vipd puts addresses on vipd0, or on lo if the kernel has no dummy devices; other hosts reach them if they have a route to this host"},
		{"before the first start", "10.96.0.10", "lo", nil, OK, "10.96.0.10 is not here yet: vipd puts addresses on lo; other hosts reach them if they have a route to this host"},
		{"before the first start, on a real device", "10.96.0.10", "eth0", nil, OK,
			"10.96.0.10 is not here yet: vipd puts addresses on eth0, where this host answers ARP or NDP for them"},
		{"the host's own", "192.168.1.100", "vipd0", nil, OK, "192.168.1.100 is the host's own (eth0): every client that reaches the host also reaches this address"},
		{"loopback", "127.0.3.1", "vipd0", nil, OK, "127.0.3.1 is on this host's loopback: only programs on this host reach it"},
		{"without root", "192.168.1.100", "vipd0", func(m *fakeHost) { m.lost = fs.ErrPermission }, Note,
			"192.168.1.100 is on eth0; it is not known whether vipd holds addresses there"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newFakeHost()
			m.Config.Addresses.Interface, m.Frontends, m.put = test.device, nil, map[netip.Addr]string{}
			m.Status, m.NoDaemon = nil, "no vipd answers"
			m.frontend(test.vip+":80/tcp", false)
			if test.change != nil {
				test.change(m)
			}
			m.wantArrival(t, test.level, test.want)
		})
	}
}

// TestManyServices examines a host with 10,000 VIPs, with and without a daemon. The examinations
// must be fast, and must read the devices only a few times.
func TestManyServices(t *testing.T) {
	m := newFakeHost()
	m.Frontends, m.put, m.Status.Addresses = nil, map[netip.Addr]string{}, nil
	var all []netip.Addr
	for i := range 10000 {
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		all = append(all, a)
		m.put[a] = "lo"
		m.frontend(a.String()+":80/tcp", false)
		m.Status.Addresses = append(m.Status.Addresses, api.Address{Address: a.String(), Held: "lo"})
	}
	looks := 0
	m.Interfaces = func() ([]Interface, error) {
		looks++
		return []Interface{{Name: "lo", Addrs: all}, {Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.5")}}}, nil
	}
	began := time.Now()
	m.wantArrival(t, OK, "10.96.0.0, 10.96.0.1, 10.96.0.2, 10.96.0.3, 10.96.0.4 and 9995 more are held on lo: reachable from programs on this host, and from other hosts that have a route to it")
	m.Status, m.NoDaemon = nil, "no vipd answers"
	m.wantArrival(t, OK, "10.96.0.0, 10.96.0.1, 10.96.0.2, 10.96.0.3, 10.96.0.4 and 9995 more are held on lo by a vipd that does not answer: reachable from programs on this host, and from other hosts that have a route to it")
	if took := time.Since(began); took > wait.Bound(20*time.Second) {
		t.Errorf("two examinations took %s, want less than the time limit", took)
	}
	if looks > 20 {
		t.Errorf("devices were read %d times, want at most 20", looks)
	}
}
