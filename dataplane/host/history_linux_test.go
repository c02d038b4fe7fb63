package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	testwait "vipd/test/wait"
)

// TestHistoryLaw makes random changes to the requested VIPs. It also changes addresses, routes and
// links as other programs might, and injects failures. In the end, each VIP must be where the last
// request puts it, and the kernel's state must equal the state that a new Host creates.
func TestHistoryLaw(t *testing.T) {
	for seed := range uint64(testwait.Soak(10, 200)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			y := newHistory(t, seed)
			for range 25 {
				y.steps[y.random.IntN(len(y.steps))]()
				y.round()
			}
			y.heal()
			y.checkFresh()
		})
	}
}

// history is a Host, with the state that random changes need.
type history struct {
	t       *testing.T
	l       *lab.Lab
	random  *rand.Rand
	o       Options
	h       *Host
	want    balancer.Desired
	foreign map[netip.Addr]bool
	steps   []func()
	log     []string
}

const historyDevice = "away"

func newHistory(t *testing.T, seed uint64) *history {
	l, _ := network(t)
	y := &history{t: t, l: l, random: rand.New(rand.NewPCG(seed, 3)), o: options(t, xtables.NFT), foreign: map[netip.Addr]bool{}}
	ip(t, "link add "+historyDevice+" type veth peer name yonder")
	ip(t, "link set yonder up")
	ip(t, "link set "+historyDevice+" up")
	t.Cleanup(func() {
		ip(t, "link del yonder")
		if t.Failed() {
			t.Logf("history:\n%s", strings.Join(y.log, "\n"))
		}
	})
	y.o.Interface = historyDevice
	y.h = newHost(t, y.o)
	y.steps = []func(){
		y.demand, y.demand, y.demand, y.takeAddress, y.takeRoute, y.bringAddress, y.dropAddress, y.pullLink, y.renumber,
		y.loseEvents, y.failView, y.failLedger, y.cancel, y.restart, func() { y.h.Resync(true) },
	}
	return y
}

func (y *history) note(format string, args ...any) {
	y.log = append(y.log, fmt.Sprintf(format, args...))
}

// vips returns the addresses that services may have as VIPs.
func (y *history) vips() []netip.Addr {
	return []netip.Addr{
		addrOf("10.96.0.1"), addrOf("10.96.0.2"), addrOf("10.96.0.3"), addrOf("10.96.0.4"),
		addrOf("fd00:96::1"), addrOf("fd00:96::2"), addrOf("fd00:96::3"),
	}
}

func (y *history) someVIP() netip.Addr { return y.vips()[y.random.IntN(len(y.vips()))] }

// run runs an ip command. The command may fail because a link is down or an object is missing.
func (y *history) run(args string) {
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	y.note("ip %s: %v %s", args, err, strings.TrimSpace(string(out)))
}

// demand adds or removes the wanted frontends on some VIPs.
func (y *history) demand() {
	for range 1 + y.random.IntN(3) {
		a := y.someVIP()
		f := frontend(netip.AddrPortFrom(a, 80).String())
		y.want.Frontends, y.want.Addresses = y.want.Frontends.Delete(f.Key), y.want.Addresses.Delete(a)
		y.want.VIPStates = y.want.VIPStates.Delete(a)
		kind := []string{"removed", "plain", "plain", "serving", "withdrawn", "owned"}[y.random.IntN(6)]
		y.note("want %s %s", a, kind)
		if kind == "removed" {
			continue
		}
		y.want.Addresses = y.want.Addresses.Set(a, 1)
		switch kind {
		case "serving":
			y.want.VIPStates = y.want.VIPStates.Set(a, balancer.Serving)
		case "owned":
			y.want.VIPStates = y.want.VIPStates.Set(a, balancer.Owned)
		case "withdrawn":
			y.want.VIPStates = y.want.VIPStates.Set(a, balancer.Withdrawn)
			f.Backends = nil
		}
		y.want.Frontends = y.want.Frontends.Set(f.Key, f)
	}
}

func (y *history) takeAddress() {
	y.run(fmt.Sprintf("addr del %s dev %s", single(y.someVIP()), historyDevice))
}

func (y *history) takeRoute() {
	y.run(fmt.Sprintf("route del local %s table local proto %d", y.someVIP(), []int{routeProtocol, plainProtocol}[y.random.IntN(2)]))
}

// bringAddress adds a VIP to another device, as the host's own address.
func (y *history) bringAddress() {
	a := y.someVIP()
	y.run(fmt.Sprintf("addr add %s dev client nodad", single(a)))
	y.foreign[a] = true
}

func (y *history) dropAddress() {
	a := y.someVIP()
	y.run(fmt.Sprintf("addr del %s dev client", single(a)))
	delete(y.foreign, a)
}

func (y *history) pullLink() {
	y.run("link set " + []string{historyDevice, "yonder"}[y.random.IntN(2)] + " " + []string{"down", "up"}[y.random.IntN(2)])
}

// renumber changes the node's own addresses.
func (y *history) renumber() {
	a := []string{"10.1.0.1/24", "10.1.0.9/24", "fd01::1/64", "fd01::9/64"}[y.random.IntN(4)]
	nodad := ""
	if strings.Contains(a, ":") {
		nodad = " nodad"
	}
	y.run(fmt.Sprintf("addr %s %s dev client", []string{"add", "del"}[y.random.IntN(2)], a+nodad))
}

// loseEvents makes the Host read the kernel's whole state again, as after an overflow of its event
// buffer.
func (y *history) loseEvents() {
	y.note("lost events")
	y.h.events.Drain()
	y.h.stale, y.h.removed = true, true
}

// failView performs a round in which the kernel's state can't be read.
func (y *history) failView() {
	y.note("no view")
	y.h.readView = func(*netlink.Handle) (view, error) { return view{}, errors.New("no memory") }
	y.h.stale = true
	y.round()
	y.h.readView = readView
}

// failLedger performs a round in which the ledger can't be written.
func (y *history) failLedger() {
	y.note("no ledger")
	path := y.h.ledger.path
	y.h.ledger.path = "/proc/nowhere/host.json"
	y.demand()
	y.round()
	y.h.ledger.path = path
}

// cancel performs a round with a canceled context. It does not call Finish.
func (y *history) cancel() {
	y.note("canceled")
	y.demand()
	ctx, stop := context.WithCancel(y.t.Context())
	stop()
	_ = y.h.Prepare(ctx, y.want) // usually fails
}

func (y *history) restart() {
	y.note("restart")
	must(y.t, y.h.Close())
	h, err := New(y.o)
	must(y.t, err)
	y.t.Cleanup(func() { _ = h.Close() }) // h may already be closed
	y.h = h
}

// round performs a round like the engine: it calls Intact and Prepare, applies some frontends, and
// calls Finish. Each step may fail.
func (y *history) round() {
	ctx := y.t.Context()
	reason, err := y.h.Intact(ctx)
	if y.note("  intact: %q %v", reason, err); reason != "" {
		y.h.Resync(true)
	}
	if err := y.h.Prepare(ctx, y.want); err != nil {
		y.note("  prepare: %v", err)
		return
	}
	applied := y.want.Frontends
	for _, f := range y.want.Frontends.All() {
		if y.random.IntN(4) == 0 { // simulates that the dataplane could not apply the frontend
			applied = applied.Delete(f.Key)
			if old, ok := y.h.applied.Get(f.Key); ok {
				applied = applied.Set(f.Key, old)
			}
		}
	}
	if err := y.h.Finish(ctx, applied); err != nil {
		y.note("  finish: %v", err)
	}
}

// syncUntilDone performs rounds until no address needs more work. Several rounds may be needed,
// because the kernel reports new IPv6 addresses late.
func (y *history) syncUntilDone(h *Host) {
	y.t.Helper()
	lab.Eventually(y.t, deadlineIn, "nothing left to do", func() error {
		reason, err := h.Intact(y.t.Context())
		if err != nil {
			return err
		}
		if reason != "" {
			h.Resync(true)
		}
		if err := h.Prepare(y.t.Context(), y.want); err != nil {
			return err
		}
		if err := h.Finish(y.t.Context(), y.want.Frontends); err != nil {
			return err
		}
		if reason, err = h.Intact(y.t.Context()); reason != "" || err != nil {
			return fmt.Errorf("reason = %q, %w", reason, err)
		}
		if some := h.leftover(func(*address) bool { return true }); len(some) > 0 {
			return fmt.Errorf("address that is not settled yet: %+v", *some[0])
		}
		return y.compare(h)
	})
}

// heal restores the links and the node's addresses. It then performs rounds until no address needs
// more work.
func (y *history) heal() {
	y.note("heal")
	for _, args := range []string{
		"link set yonder up", "link set " + historyDevice + " up", "addr add 10.1.0.1/24 dev client", "addr add fd01::1/64 dev client nodad",
	} {
		y.run(args)
	}
	y.syncUntilDone(y.h)
}

func (y *history) compare(h *Host) error {
	want, on := map[string]string{}, []string(nil)
	for a := range y.want.Addresses.Keys() {
		s := y.want.VIPStates.At(a)
		switch {
		case y.foreign[a]:
			want[a.String()] = onHost
		case s == balancer.Owned || s == balancer.Withdrawn:
			want[a.String()] = nowhere
		default:
			want[a.String()] = historyDevice
			on = append(on, single(a).String())
		}
	}
	slices.Sort(on)
	if got := holders(h); !maps.Equal(got, want) {
		return fmt.Errorf("holders = %v, want %v", got, want)
	}
	if got := onDevice(y.t, historyDevice); !slices.Equal(got, on) {
		return fmt.Errorf("addresses of %s = %q, want %q", historyDevice, got, on)
	}
	if p := h.Problems(); len(p) != 0 {
		return fmt.Errorf("problems = %v, want none", p)
	}
	return nil
}

// checkFresh compares the kernel's state with the state that a new Host creates after everything
// was removed.
func (y *history) checkFresh() {
	y.t.Helper()
	y.h.Resync(true) // as the engine does every minute; this also selects the source address again
	y.syncUntilDone(y.h)
	got := y.state()
	must(y.t, y.h.Close())
	_, err := Cleanup(y.t.Context(), y.o, false)
	must(y.t, err)
	h := newHost(y.t, y.o)
	y.syncUntilDone(h)
	want := y.state()
	for _, line := range got {
		if !slices.Contains(want, line) {
			y.t.Errorf("line only in the state after the history: %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			y.t.Errorf("line only in a new Host's state: %s", line)
		}
	}
	if y.t.Failed() {
		return
	}
	y.want = balancer.Desired{}
	y.syncUntilDone(h)
	if routes := append(h.ourRoutes(routeProtocol), h.ourRoutes(plainProtocol)...); len(routes) > 0 {
		y.t.Errorf("routes = %v, want none", routes)
	}
}

// state returns the kernel's addresses, local routes and rules, one in each line. Routes to the
// same address share a line, in their order.
func (y *history) state() []string {
	var all []string
	for line := range strings.Lines(y.l.Host().Exec("ip", "-o", "addr")) {
		_, line, _ = strings.Cut(line, " ")                      // without the device's index
		if own := strings.Contains(line, " inet6 fe80:"); !own { // the flags of the kernel's link-local addresses change with time
			all = append(all, strings.Join(strings.Fields(line), " "))
		}
	}
	routes := map[string]string{}
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(y.l.Host().Exec("ip", family, "route", "show", "table", "local")) {
			if fields := strings.Fields(line); !strings.HasPrefix(fields[1], "fe80:") {
				routes[fields[1]] += strings.Join(fields, " ") + "; "
			}
		}
	}
	all = append(all, slices.Collect(maps.Values(routes))...)
	// Set elements have no fixed order, so each becomes a line.
	elements := strings.NewReplacer(",", "\n", "{", "{\n", "}", "\n}")
	for line := range strings.Lines(elements.Replace(y.l.Host().Exec("nft", "-s", "list", "ruleset"))) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}
