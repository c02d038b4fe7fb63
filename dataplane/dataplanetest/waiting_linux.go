package dataplanetest

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// waitingClients is the number of clients that are trying to connect when a service is added.
const waitingClients = 200

// testWaiting connects to VIPs before their services exist, both when vipd starts and later. When a
// service is added, none of its waiting clients may be refused.
func testWaiting(t *testing.T, s *Subject) {
	r := newStill(t, s, swallowing(t, lab.New(t)))
	trackConnections(r)
	r.prepare(wait.Scaled(driverProbe))
	r.endDriven()
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	clients := startConnects(r, r.w.vip)
	r.set(web)
	r.start()
	checkConnected(r, clients, "at the start")
	r.apply(web)
	clients = startConnects(r, vipN(30))
	r.set(web, newService("new", vipN(30), endpoints(r.w.servers...)...))
	checkConnected(r, clients, "with a new service")
}

// swallowing builds the layout "routed", but adds a route for all VIPs from the host to a neighbor
// that drops every packet.
func swallowing(t testing.TB, l *lab.Lab) *world {
	w := routed(t, l)
	sink := l.Add("sink")
	l.Link(w.host, sink, "10.5.0.1/24", "10.5.0.2/24", "fd05::1/64", "fd05::2/64")
	for _, to := range vipRanges {
		sink.Exec("ip", "route", "add", "blackhole", to)
	}
	w.routeVIPs(w.host, "10.5.0.2", "fd05::2")
	w.own = append(w.own, netip.MustParseAddr("10.5.0.1"), netip.MustParseAddr("fd05::1"))
	return w
}

// trackConnections makes the host track connections, as a firewall's rules do.
func trackConnections(r *rig) {
	r.Helper()
	for _, tool := range []string{"iptables", "ip6tables"} {
		known := []string{"FORWARD", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"}
		run(r, tool, append([]string{"-A"}, known...)...)
		r.Cleanup(func() { run(r, tool, append([]string{"-D"}, known...)...) })
	}
}

// connecting is a TCP connection attempt whose SYN has been sent.
type connecting struct {
	fd   int
	from string
	to   netip.AddrPort
}

// startConnects starts connection attempts to the IPv4 and the IPv6 VIP, from the client and from
// the host. It spreads them over a second, so their retransmissions are also spread.
func startConnects(r *rig, vip addrs) (all []connecting) {
	r.Helper()
	for i := range wait.Load(waitingClients) {
		from := []*lab.NS{r.w.client, r.w.host}[i/2%2]
		c := connecting{from: from.Name, to: keyOf(vip[i%2], vipPort, balancer.TCP).AddrPort()}
		err := from.Do(func() (err error) {
			c.fd, err = startConnect(c.to)
			return err
		})
		if err != nil {
			r.Fatalf("error of a connection from %s to %s = %v, want nil", c.from, c.to, err)
		}
		r.Cleanup(func() { _ = unix.Close(c.fd) })
		all = append(all, c)
		r.pause(time.Second / waitingClients)
	}
	return all
}

func startConnect(to netip.AddrPort) (fd int, err error) {
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, at); !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("error of connect = %v, want EINPROGRESS", err)
	}
	return fd, nil
}

// checkConnected waits until all connection attempts have finished, and checks that none was
// refused.
func checkConnected(r *rig, all []connecting, when string) {
	r.Helper()
	outcome := map[int]error{}
	lab.Eventually(r, atOnce, "connecting "+when, func() error {
		for _, c := range all {
			if _, done := outcome[c.fd]; done {
				continue
			}
			if done, err := connectOutcome(c.fd); done {
				outcome[c.fd] = err
			}
		}
		if n := len(all) - len(outcome); n > 0 {
			return fmt.Errorf("%d of %d connection attempts have not ended", n, len(all))
		}
		return nil
	})
	failures := map[string]int{}
	for _, c := range all {
		if err := outcome[c.fd]; err != nil {
			failures[fmt.Sprintf("%s to %s: %v", c.from, c.to, err)]++
		}
	}
	for failure, n := range failures {
		r.Errorf("%s: failed clients = %d of %d, want 0: %s", when, n, len(all), failure)
	}
}

// connectOutcome reports whether a connection attempt has finished, and returns its error.
func connectOutcome(fd int) (done bool, err error) {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(poll, 0); err != nil || n == 0 {
		return false, nil //nolint:nilerr // a signal interrupted the call
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return true, err
}
