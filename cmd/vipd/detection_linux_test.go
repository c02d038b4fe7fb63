package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// The checks are fast, but slow enough for a busy machine.
const (
	checkInterval = time.Second
	checkTimeout  = 600 * time.Millisecond
	checkFall     = 3
)

// detection returns how long detecting a failure may take, as docs/health.md promises.
func detection() time.Duration { return scaled(checkInterval*checkFall + checkTimeout) }

// applySlack returns how long applying a change may take on a busy machine. An idle machine needs
// some milliseconds in userspace mode, and about fifty in other modes.
func applySlack() time.Duration { return scaled(time.Second) }

// pace is the time between two requests to one service.
const pace = 250 * time.Millisecond

// scaled scales a duration for a slow machine. wait.Scaled would be too generous, because these
// tests compare measured durations.
func scaled(d time.Duration) time.Duration { return max(d, wait.Scaled(d)/3) }

// asked is a client's request.
type asked struct {
	began  time.Time
	server string
	err    error
}

// audience sends requests to one service at a fixed pace, regardless of how long each takes.
type audience struct {
	site *site
	vip  netip.AddrPort
	rest atomic.Bool // pauses all clients

	mu    sync.Mutex
	heard []asked
	late  time.Duration // how late a request was started at most
}

// since returns the requests that started at or after begin, sorted by start time.
func (a *audience) since(begin time.Time) []asked {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []asked
	for _, q := range a.heard {
		if !q.began.Before(begin) {
			all = append(all, q)
		}
	}
	slices.SortFunc(all, func(p, q asked) int { return p.began.Compare(q.began) })
	return all
}

// hasAnswerOf reports whether the server has answered a request that started at or after begin.
func (a *audience) hasAnswerOf(server string, begin time.Time) bool {
	return slices.ContainsFunc(a.since(begin), func(q asked) bool { return q.server == server })
}

// maxAsked is the maximum number of concurrent requests that an audience sends. It is twice the
// number of requests that start within a client's timeout. Without a limit, requests would pile up
// on a slow machine.
const maxAsked = 2 * int(patience/pace)

func (a *audience) send(from *lab.NS, stop <-chan struct{}) {
	room := make(chan struct{}, maxAsked)
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(wait.Scaled(pace))
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case due := <-tick.C:
			if a.rest.Load() {
				continue
			}
			room <- struct{}{}
			all.Go(func() {
				defer func() { <-room }()
				q := asked{began: time.Now()}
				q.server, q.err = a.site.request(from, a.vip)
				a.mu.Lock()
				defer a.mu.Unlock()
				a.heard, a.late = append(a.heard, q), max(a.late, q.began.Sub(due))
			})
		}
	}
}

// checkedGateway is a gateway that has a service for each kind of failure. The service's second
// endpoint fails in that way. The services "quiet" and "panicky" answer clients, but their checks
// fail when the test asks for it.
type checkedGateway struct {
	*gateway
	audiences []*audience
	doubted   []*site
}

func newCheckedGateway(t *testing.T, mode string) *checkedGateway {
	t.Helper()
	g := &checkedGateway{gateway: newPlainGateway(t)}
	certs := newCertificates(t)
	var text strings.Builder
	fmt.Fprintf(&text, "%s[defaults]\ndrain_timeout = %q\n", settings(mode, "nft"), scaled(time.Second))
	if mode == "userspace" { // a proxy tries the next endpoint in time, unless its timeout is longer than the clients' timeout
		fmt.Fprintf(&text, "connect_timeout = %q\n", scaled(3*patience))
	}
	check := func(of balancer.HealthType, more string) string {
		return fmt.Sprintf("health = { type = %q, interval = %q, timeout = %q, fall = %d, rise = 2, %s }\n", of, scaled(checkInterval), scaled(checkTimeout), checkFall, more)
	}
	add := func(name, vip string, port int, protocol, check string) {
		fmt.Fprintf(&text, "[services.%s]\nvips = [%q]\nports = [{ port = 80, target_port = %d, protocol = %q }]\n"+
			"endpoints = [{ address = \"10.2.0.2\" }, { address = \"10.2.1.2\" }]\n%s", name, vip, port, protocol, check)
	}
	for i, f := range failures() {
		var sites []*site
		for j, ns := range g.ends {
			sites = append(sites, newSite(t, f, ns.Name, ns, netip.MustParseAddrPort(fmt.Sprintf("10.2.%d.2:%d", j, 9000+i)), certs))
		}
		vip := netip.MustParseAddrPort(fmt.Sprintf("10.96.0.%d:80", 20+i))
		g.audiences = append(g.audiences, &audience{site: sites[1], vip: vip})
		protocol, more := "tcp", ""
		switch f.check {
		case balancer.UDPHealth:
			protocol, more = "udp", `send = "who", expect = "s"`
		case balancer.HTTPHealth:
			more = fmt.Sprintf("expect = %q", ready)
		case balancer.HTTPSHealth:
			more = fmt.Sprintf("host = %q, ca_file = %q", siteName, certs.file)
		}
		add(strings.ReplaceAll(f.name, " ", "-"), vip.Addr().String(), 9000+i, protocol, check(f.check, more))
	}
	wrong := failures()[slices.IndexFunc(failures(), func(f failure) bool { return f.name == "wrong status" })]
	for i, ns := range g.ends { // checks fail, but requests don't
		at := netip.MustParseAddrPort(fmt.Sprintf("10.2.%d.2:9100", i))
		g.doubted = append(g.doubted, newSite(t, wrong, ns.Name, ns, at, certs))
	}
	add("quiet", quietVIP.Addr().String(), 8080, "tcp", check(balancer.HTTPHealth, "port = 9100"))
	add("panicky", panickyVIP.Addr().String(), 8080, "tcp", check(balancer.HTTPHealth, "port = 9100, panic_threshold = 100"))
	program.Save(t, g.file, text.String())
	return g
}

// These VIPs belong to services whose endpoints all fail their checks.
var (
	quietVIP   = netip.MustParseAddrPort("10.96.0.50:80")
	panickyVIP = netip.MustParseAddrPort("10.96.0.51:80")
)

// found waits until the endpoints on the second server and the endpoints of the services "quiet"
// and "panicky" have the verdict want.
func (g *checkedGateway) found(want balancer.Verdict, within time.Duration) {
	g.t.Helper()
	lab.Eventually(g.t, within, "endpoints to be found "+string(want), func() error {
		all, err := g.api.Endpoints(g.t.Context())
		if err != nil {
			return err
		}
		for _, e := range all {
			fails := strings.HasPrefix(e.Address, "10.2.1.2:") || e.Service == "quiet" || e.Service == "panicky"
			if expected := balancer.HealthUp; e.Health != want && fails || !fails && e.Health != expected {
				return fmt.Errorf("endpoint %s of %s is %s", e.Address, e.Service, e.Health)
			}
		}
		return nil
	})
}

// detects makes endpoints fail in different ways at the same time while clients send requests. vipd
// must find them down, and find them up after they recover. Only make soak also measures how long
// requests are lost, because other tests would delay vipd.
func detects(t *testing.T, mode string) {
	g := newCheckedGateway(t, mode)
	g.start()
	t.Cleanup(func() { g.sweep(mode) })
	g.found(balancer.HealthUp, 20*time.Second)
	g.serves(mode)
	stop := make(chan struct{})
	var sending sync.WaitGroup
	defer sending.Wait()
	defer close(stop)
	for _, a := range g.audiences {
		sending.Go(func() { a.send(g.client, stop) })
	}
	g.meet("before", time.Time{})

	for attempt := 1; ; attempt++ {
		broken, late := g.failOnce(mode)
		if len(broken) == 0 || !wait.Soaking() {
			break
		}
		t.Logf("attempt %d, in which clients were up to %v late: %s", attempt, late, strings.Join(broken, "; "))
		switch { // a machine that delays clients may also delay vipd
		case attempt < 3:
		case late >= applySlack()/10:
			t.Skipf("requests are lost for longer than documented, but clients were up to %v late, so this machine is too slow to measure", late)
		case attempt == 6:
			t.Fatal("requests were lost for longer than docs/health.md promises")
		}
	}
}

// failOnce makes each failing endpoint fail in the way of its service, and then recover. It returns
// the services that lost requests for longer than promised, and how late the clients themselves
// were at most.
func (g *checkedGateway) failOnce(mode string) (broken []string, late time.Duration) {
	g.t.Helper()
	measured := 0
	failed := time.Now()
	for _, a := range g.audiences {
		a.behind() // discards the delays so far
		a.site.fail()
	}
	for _, s := range g.doubted {
		s.fail()
	}
	time.Sleep(time.Until(failed.Add(detection() + applySlack() + scaled(checkInterval)))) // to notice requests that are lost later
	g.found(balancer.HealthDown, 20*time.Second)
	for _, a := range g.audiences {
		late = max(late, a.behind())
		lost, text := a.judge(g.t, mode, failed)
		if text != "" {
			broken = append(broken, text)
		}
		if lost > 0 {
			measured++
		}
	}
	if measured < len(g.audiences)/2 { // some clients lose no request, by chance or because userspace mode retries another endpoint
		g.t.Errorf("kinds of failures that clients noticed = %d, want at least half of %d", measured, len(g.audiences))
	}
	g.checkUnhealthyServices()

	healed := time.Now()
	for _, a := range g.audiences {
		a.site.heal()
		a.rest.Store(true) // leaves more CPU time to the checks
	}
	for _, s := range g.doubted {
		s.heal()
	}
	g.found(balancer.HealthUp, 20*time.Second)
	up := time.Now()
	for _, a := range g.audiences {
		a.rest.Store(false)
	}
	g.t.Logf("%s mode: all are up again %v after they healed", mode, up.Sub(healed).Round(time.Millisecond))
	g.meet("after", up)
	return broken, late
}

// behind returns how late requests were started at most since the last call.
func (a *audience) behind() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	late := a.late
	a.late = 0
	return late
}

// meet waits until clients of every service have reached both servers.
func (g *checkedGateway) meet(when string, since time.Time) {
	g.t.Helper()
	for _, a := range g.audiences {
		wait.For(g.t, 20*time.Second, when+" the failure, both servers to answer clients of the one that is to be "+a.site.failure.name, func() bool {
			return a.hasAnswerOf("s1", since) && a.hasAnswerOf("s2", since)
		})
	}
}

// judge counts the requests that were lost after the failure. If they violate a promise, broken
// describes how.
func (a *audience) judge(t testing.TB, mode string, failed time.Time) (lost int, broken string) {
	t.Helper()
	var first, last asked
	all := a.since(failed)
	for _, q := range all {
		if q.err == nil {
			continue
		}
		if lost++; lost == 1 {
			first = q
		}
		last = q
	}
	took := last.began.Sub(first.began)
	t.Logf("%s mode, %s: %d of %d requests lost, the last %v after the first", mode, a.site.failure.name, lost, len(all), took.Round(time.Millisecond))
	if took > detection()+applySlack() {
		return lost, fmt.Sprintf("%s: requests were lost for %v, want at most %v and %v for carrying it out: first %v, last %v",
			a.site.failure.name, took, detection(), applySlack(), first.err, last.err)
	}
	return lost, ""
}

// checkUnhealthyServices checks services without an endpoint that passes its check. By default,
// clients must be refused immediately. With a panic threshold, all endpoints must be used.
func (g *checkedGateway) checkUnhealthyServices() {
	g.t.Helper()
	lab.Eventually(g.t, 0, "a refusal of a service without a healthy endpoint", func() error { // request fails if no refusal arrives within a client's timeout
		_, err := g.doubted[0].request(g.client, quietVIP)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET):
			return nil
		case err == nil:
			g.t.Fatal("service without a healthy endpoint: answers = true, want false")
		}
		return err
	})
	met := map[string]bool{}
	for range 64 { // each request reaches a random server, so 8 requests would reach only one server once in 128 attempts
		if len(met) == 2 {
			break
		}
		c, err := once(g.client, panickyVIP.String())
		if err != nil {
			g.t.Errorf("service that panics: error = %v, want none", err)
		}
		met[c.Server] = true
	}
	if len(met) != 2 {
		g.t.Errorf("service that panics: answering endpoints = %v, want both endpoints", met)
	}
}

func TestDetection(t *testing.T) {
	for _, mode := range []string{"userspace", "iptables"} {
		t.Run(mode, func(t *testing.T) { detects(t, mode) })
	}
}

func TestIPVSDetection(t *testing.T) {
	lab.NeedIPVS(t)
	wait.ShownElsewhere(t, "TestDetection")
	detects(t, "ipvs")
}
