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

// The checks of these tests. They are fast, so that tests are short, but not so fast that a busy machine falls behind.
const (
	checkInterval = time.Second
	checkTimeout  = 600 * time.Millisecond
	checkFall     = 3
)

// detection is the time within which vipd promises to know of a failure.
func detection() time.Duration { return scaled(checkInterval*checkFall + checkTimeout) }

// applySlack is for carrying out what is known then, on a machine that has more to do: it takes some milliseconds in
// userspace mode, some fifty in the others.
func applySlack() time.Duration { return scaled(time.Second) }

// pace is the time between two requests for one service.
const pace = 75 * time.Millisecond

// scaled is a time of these tests on this machine. A slow one need not wait as long as wait.Scaled says, which is generous:
// the tests' law is about the times that they set.
func scaled(d time.Duration) time.Duration { return max(d, wait.Scaled(d)/3) }

// asked is one request of a client.
type asked struct {
	began  time.Time
	server string
	err    error
}

// audience are clients that send requests for one service, one after the other however long each takes.
type audience struct {
	site *site
	vip  netip.AddrPort
	rest atomic.Bool // nothing is sent meanwhile

	mu    sync.Mutex
	heard []asked
	late  time.Duration // by which a request began later than it was due, at most
}

// since are the requests that began then or later, sorted by their beginnings.
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

// hears reports whether a server answers requests that began after a time.
func (a *audience) hears(server string, begin time.Time) bool {
	return slices.ContainsFunc(a.since(begin), func(q asked) bool { return q.server == server })
}

// mostAsked is how many requests of an audience there are at a time: more than have their answers late by a client's patience. A
// machine that has no time for them would have less and less for all else.
const mostAsked = 2 * int(patience/pace)

// send sends requests from a namespace until stop is closed.
func (a *audience) send(from *lab.NS, stop <-chan struct{}) {
	room := make(chan struct{}, mostAsked)
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

// checkedGateway is a gateway with a service for each way to fail, whose second endpoint fails in that way, and the
// services quiet and panicky, which are well but whose checks say otherwise when they are told to.
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
	if mode == "userspace" { // a proxy goes on to the next endpoint in time, unless its patience is greater than clients'
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
	for i, ns := range g.ends { // what is checked fails, what clients ask does not
		at := netip.MustParseAddrPort(fmt.Sprintf("10.2.%d.2:9100", i))
		g.doubted = append(g.doubted, newSite(t, wrong, ns.Name, ns, at, certs))
	}
	add("quiet", quietVIP.Addr().String(), 8080, "tcp", check(balancer.HTTPHealth, "port = 9100"))
	add("panicky", panickyVIP.Addr().String(), 8080, "tcp", check(balancer.HTTPHealth, "port = 9100, panic_threshold = 100"))
	program.Save(t, g.file, text.String())
	return g
}

// The VIPs of the services whose endpoints all fail their checks.
var (
	quietVIP   = netip.MustParseAddrPort("10.96.0.50:80")
	panickyVIP = netip.MustParseAddrPort("10.96.0.51:80")
)

// found waits until every endpoint of the second server, and both of the services without a healthy one, are found up or
// down.
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
				return fmt.Errorf("%s of %s is %s", e.Address, e.Service, e.Health)
			}
		}
		return nil
	})
}

// detects has endpoints fail in every way at once, while clients ask, and measures from the first request that is lost to
// the last. Then they heal.
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
		if len(broken) == 0 {
			break
		}
		t.Logf("attempt %d, in which clients were up to %v late: %s", attempt, late, strings.Join(broken, "; "))
		switch { // vipd may be late where clients are not
		case attempt < 3:
		case late >= applySlack()/10:
			t.Skipf("requests are lost for longer than is promised, but clients were up to %v late, so this machine is too slow to tell why", late)
		case attempt == 6:
			t.Fatal("requests are lost for longer than is promised")
		}
	}
}

// failOnce has every endpoint fail in its way, and heal. It returns where requests were lost for longer than is promised,
// and by how much the clients themselves fell behind.
func (g *checkedGateway) failOnce(mode string) (broken []string, late time.Duration) {
	g.t.Helper()
	measured := 0
	failed := time.Now()
	for _, a := range g.audiences {
		a.behind() // before does not count
		a.site.fail()
	}
	for _, s := range g.doubted {
		s.fail()
	}
	time.Sleep(time.Until(failed.Add(detection() + applySlack() + scaled(checkInterval)))) // what is lost later would be seen
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
	if measured < len(g.audiences)/2 { // by chance, or in userspace mode by going on to the other one, some lose nothing
		g.t.Errorf("only %d of %d kinds of failures were noticed by clients", measured, len(g.audiences))
	}
	g.noneHealthy()

	healed := time.Now()
	for _, a := range g.audiences {
		a.site.heal()
		a.rest.Store(true) // a busy machine has more time for the checks
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

// behind is by how much a request was late since the last call.
func (a *audience) behind() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	late := a.late
	a.late = 0
	return late
}

// meet waits until clients of every service have met both servers.
func (g *checkedGateway) meet(when string, since time.Time) {
	g.t.Helper()
	for _, a := range g.audiences {
		wait.For(g.t, 20*time.Second, when+" the failure, both servers to answer clients of the one that is to be "+a.site.failure.name, func() bool {
			return a.hears("s1", since) && a.hears("s2", since)
		})
	}
}

// judge counts what clients have lost since their endpoint failed, and says what is wrong with it.
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

// noneHealthy looks at services none of whose endpoints passes its check: by default clients are refused at once; with a
// panic threshold all are used.
func (g *checkedGateway) noneHealthy() {
	g.t.Helper()
	lab.Eventually(g.t, 0, "a refusal of a service without a healthy endpoint", func() error { // within a client's patience
		_, err := g.doubted[0].request(g.client, quietVIP)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET):
			return nil
		case err == nil:
			g.t.Fatal("a service without a healthy endpoint answers")
		}
		return err
	})
	met := map[string]bool{}
	for range 64 { // each is chosen at random: 8 met one server alone once in 128 runs
		if len(met) == 2 {
			break
		}
		c, err := once(g.client, panickyVIP.String())
		if err != nil {
			g.t.Errorf("a service that panics: %v", err)
		}
		met[c.Server] = true
	}
	if len(met) != 2 {
		g.t.Errorf("of a service that panics, %v answer", met)
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
