package vrrp_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
	"vipd/test/wait"
)

// scenario is a sequence of events without faults. The model repeats the scenario with each fault
// before each act of each host.
type scenario struct {
	name   string
	groups []vrrp.Group
	// from and to limit when a fault may happen. Both are measured from the end of prepare.
	prepare  func(w *world)
	from, to time.Duration
	// both is the maximum time for which both hosts may answer. In most scenarios, this can only
	// happen if a host stops while the other host preempts it.
	both time.Duration
	// losses is the maximum number of adverts that are lost just before the fault.
	losses int
	// ends reports whether the first host stops for good during the scenario. If the second host
	// also stops, nobody can answer.
	ends bool
	// spoil changes the packets of a host while they are in transit.
	spoil func(from *host, d *vrrp.Datagram)
}

func startAt(w *world, h *host, d time.Duration) {
	w.run(d)
	h.start()
}

// preempting is how long both hosts may answer if one host stops just when the other host preempts
// it.
const preempting = gateTime

// scenarios returns all scenarios, each of which has two hosts.
func scenarios() []scenario {
	return []scenario{
		{name: "an owner and a backup", groups: pair(150, 100, 0), from: 500 * ms, to: 610 * ms, losses: 1, prepare: func(w *world) {
			w.hosts[0].start()
			startAt(w, w.hosts[1], 7*ms)
		}},
		{name: "both start", groups: pair(150, 150, 0), from: 300 * ms, to: 420 * ms, both: preempting, prepare: func(w *world) {
			w.hosts[0].start()
			w.hosts[1].start()
		}},
		{name: "the higher host comes back", groups: pair(150, 100, 0), from: 300 * ms, to: 450 * ms, both: preempting, prepare: func(w *world) {
			w.hosts[1].start()
			startAt(w, w.hosts[0], 603*ms)
		}},
		{name: "the owner resigns", groups: pair(150, 100, vrrp.Never), from: 0, to: 150 * ms, prepare: func(w *world) {
			w.hosts[0].start()
			startAt(w, w.hosts[1], 7*ms)
			w.run(450 * ms)
			h := w.hosts[0]
			h.input(func(now local.Time) []local.Action { return h.node.Resign(now, "main") })
		}},
		{name: "the owner stops for good", groups: pair(150, 100, 0), from: 0, to: 150 * ms, ends: true, prepare: func(w *world) {
			w.hosts[0].start()
			startAt(w, w.hosts[1], 7*ms)
			w.run(450 * ms)
			h := w.hosts[0]
			h.input(h.node.Stop)
		}},
		refused("the backup refuses the owner's adverts", pair(150, 100, 0), func(from *host, d *vrrp.Datagram) {
			if from == from.w.hosts[0] {
				d.TTL = 64
			}
		}),
		refused("both refuse adverts that may be forwarded", pair(150, 100, 0), func(_ *host, d *vrrp.Datagram) { d.TTL = 64 }),
		refused("both refuse adverts of unknown peers", strangers(pair(150, 100, 0)), nil),
		refused("both refuse adverts with another checksum", pair(150, 100, 0), func(_ *host, d *vrrp.Datagram) { d.Data[7]++ }),
		newcomer("a newcomer refuses the owner's adverts", pair(150, 100, 0), refusesOwner),
		newcomer("both refuse, and a newcomer never yields", stubborn(pair(150, 100, 0)), func(_ *host, d *vrrp.Datagram) { d.Data[7]++ }),
		newcomer("a lower newcomer refuses the owner's adverts, and never yields", stubborn(pair(150, 100, 0)), refusesOwner),
		newcomer("a lower newcomer never yields to an owner that does not preempt", stubborn(pair(150, 100, vrrp.Never)), refusesOwner),
	}
}

// refused returns a scenario in which both hosts become owners, because one host refuses the
// other's adverts. Only the host that has preempted the other can then resolve the conflict.
func refused(name string, groups []vrrp.Group, spoil func(from *host, d *vrrp.Datagram)) scenario {
	return scenario{name: name, groups: groups, spoil: spoil, from: 320 * ms, to: 400 * ms, both: 5 * interval, prepare: func(w *world) {
		w.hosts[0].start()
		startAt(w, w.hosts[1], 7*ms)
	}}
}

// newcomer returns a scenario in which the second host starts long after the first, and refuses the
// first host's adverts.
func newcomer(name string, groups []vrrp.Group, spoil func(from *host, d *vrrp.Datagram)) scenario {
	// A fault of the first host can delay its yield by gateTime.
	return scenario{name: name, groups: groups, spoil: spoil, from: 350 * ms, to: 430 * ms, both: 5*interval + gateTime, prepare: func(w *world) {
		w.hosts[0].start()
		startAt(w, w.hosts[1], 1007*ms)
	}}
}

// refusesOwner changes the adverts of the first host so that the second host refuses them.
func refusesOwner(from *host, d *vrrp.Datagram) {
	if from == from.w.hosts[0] {
		d.Data[7]++
	}
}

// stubborn configures the second host never to yield, like keepalived.
func stubborn(groups []vrrp.Group) []vrrp.Group {
	groups[1].Unyielding = true
	return groups
}

// strangers configures peers for each host that do not include the other host.
func strangers(groups []vrrp.Group) []vrrp.Group {
	for i := range groups {
		groups[i].Link.Peers = addrs("10.9.0.77")
	}
	return groups
}

// faults returns all faults of the model. A fault that stops a process lasts either for less than
// gateTime, or for about as long as a backup waits before it takes over.
func faults() []fault {
	all := []fault{
		{name: "killed", do: kill}, {name: "stopped", do: stopFor(time.Hour)},
		{name: "loop hangs", do: hangLoop, hangs: true}, {name: "worker hangs", do: hangWorker, hangs: true},
	}
	stops := []time.Duration{30, 60, 345, 600}
	if wait.Soaking() {
		stops = []time.Duration{10, 30, 45, 60, 100, 200, 260, 300, 330, 345, 360, 380, 400, 500, 600, 1000}
	}
	for _, d := range stops {
		all = append(all, fault{name: fmt.Sprintf("stopped for %s", d*ms), do: stopFor(d * ms), lasts: d * ms})
	}
	return all
}

// silence is the maximum time without an owner. It is twice the maximum down time, because a host
// restarts its down timer after a pause.
const silence = 2 * (4*interval + 50*ms)

// history is a scenario with a fault of the host victim. The field lost is how many of the victim's
// adverts are lost just before the fault.
type history struct {
	*scenario
	fault
	victim, lost int
	adverts      []int
	mistake      string
}

func (h *history) run(verbose bool) *world {
	w := newWorld(h.groups...)
	w.mistake, w.verbose, w.spoil = h.mistake, verbose, h.spoil
	v := w.hosts[h.victim]
	v.fault = h.fault
	before := 0
	for _, act := range h.adverts {
		if act < h.act {
			before++
		}
	}
	v.lost = func(n int) bool { return n <= before && n > before-h.lost }
	h.prepare(w)
	after := 700 * ms
	if h.both > preempting {
		after += h.both + silence // both hosts may become owners late
	}
	w.run(h.to + h.lasts + after)
	return w
}

// acts returns the numbers of the victim's first and last act during which a fault can happen, and
// the numbers of the acts that send adverts.
func (s *scenario) acts(victim int) (first, last int, adverts []int) {
	w := newWorld(s.groups...)
	w.spoil = s.spoil
	s.prepare(w)
	w.run(s.from)
	first = w.hosts[victim].acts
	w.run(s.to - s.from)
	return first + 1, w.hosts[victim].acts, w.hosts[victim].adverts
}

// visit calls check for each history of a scenario. The histories combine each fault with each act
// of each host, and with each number of lost adverts.
func (s *scenario) visit(mistake string, check func(h *history)) (histories int) {
	for victim := range s.groups {
		first, last, adverts := s.acts(victim)
		for act := first; act <= last; act++ {
			for _, f := range faults() {
				for lost := range s.losses + 1 {
					f.act = act
					histories++
					check(&history{s, f, victim, lost, adverts, mistake})
				}
			}
		}
	}
	return histories
}

// wrong describes the rule that the history h has broken in w. It returns "" if no rule is broken.
func (h *history) wrong(w *world) string {
	most := h.both
	if h.both == preempting && h.fault.hangs {
		most = h.groups[0].OwnerTime() // if only one thread hangs, another may still refresh the gate
	}
	alone := h.ends && h.victim == 1
	switch owners := w.owners(); {
	case w.wrong != "":
		return w.wrong
	case w.both > most:
		return fmt.Sprintf("both hosts answer for %s, want at most %s", w.both, most)
	case h.fault.hangs && h.fault.name != "loop hangs" || alone && h.fault.lasts == 0: // perhaps no host can answer
	case w.nobody > silence && !alone:
		return fmt.Sprintf("nobody answers for %s, want at most %s", w.nobody, silence)
	case owners != 1:
		return fmt.Sprintf("%d hosts answer at the end, want 1", owners)
	}
	return ""
}

// TestPairMeetsAllFaults runs each scenario of two hosts with each fault before each act of each
// host. Both hosts may answer only for a short time, while one of them stops and the other preempts
// it. At the end, one host must answer.
func TestPairMeetsAllFaults(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		failures := 0
		n := s.visit("", func(h *history) {
			if wrong := h.wrong(h.run(false)); wrong != "" && failures < 3 {
				failures++
				t.Errorf("%s, %s before act %d of host %d: %s\n%s", s.name, h.fault.name, h.act, h.victim, wrong, strings.Join(h.run(true).log, "\n"))
			}
		})
		t.Logf("%s: %d histories", s.name, n)
	}
}

func (w *world) owners() (n int) {
	for _, h := range w.hosts {
		if h.answers() {
			n++
		}
	}
	return n
}

// TestGaps runs each event without other faults. The VIP must not be without an answer for longer
// than VRRP permits.
func TestGaps(t *testing.T) {
	t.Parallel()
	skew := pair(150, 100, 0)[1].Skew(100, interval)
	for _, c := range []struct {
		name string
		do   func(w *world, owner *host)
		want time.Duration
	}{
		{name: "killed", do: func(_ *world, owner *host) { kill(owner) }, want: 3*interval + skew + 30*ms},
		{name: "moved", do: func(_ *world, owner *host) {
			owner.input(func(now local.Time) []local.Action { return owner.node.Resign(now, "main") })
		}, want: skew + 30*ms},
		{name: "stopped", do: func(_ *world, owner *host) { owner.input(owner.node.Stop) }, want: skew + 30*ms},
		{name: "not ready", do: func(_ *world, owner *host) {
			owner.input(func(now local.Time) []local.Action { return owner.node.Ready(now, "main", "no endpoint") })
		}, want: skew + 30*ms},
		{name: "preempted", do: func(w *world, owner *host) {
			owner.input(func(now local.Time) []local.Action { return owner.node.Resign(now, "main") })
			w.run(300 * ms)
			w.nobody = 0
			owner.input(func(now local.Time) []local.Action { return owner.node.Standby(now, false) })
		}, want: 30 * ms},
	} {
		for phase := time.Duration(0); phase < interval; phase += 7 * ms {
			w := newWorld(pair(150, 100, 0)...)
			w.hosts[0].start()
			startAt(w, w.hosts[1], 7*ms)
			w.run(600*ms + phase)
			c.do(w, w.hosts[0])
			w.run(time.Second)
			if w.nobody > c.want || w.both > 0 || w.owners() != 1 {
				t.Errorf("%s, phase %s: nobody answered for %s, want at most %s; both hosts answered for %s, want 0; owners = %d, want 1",
					c.name, phase, w.nobody, c.want, w.both, w.owners())
			}
		}
	}
}

// TestModelFindsMistakes breaks one rule at a time. For each of the listed faults, the model must
// find a history that breaks a rule: both hosts answer, or no host answers at the end.
func TestModelFindsMistakes(t *testing.T) {
	t.Parallel()
	for mistake, names := range map[string][]string{
		gateless:        {"killed", "stopped", "loop hangs", "stopped for 600ms"},
		refreshesLapsed: {"stopped for 60ms"},
	} {
		s := scenarios()[0]
		s.to = s.from + 20*ms
		found := map[string]int{}
		s.visit(mistake, func(h *history) {
			if w := h.run(false); w.both > 0 || w.owners() != 1 {
				found[h.fault.name]++
			}
		})
		for _, name := range names {
			if found[name] == 0 {
				t.Errorf("mistake: %s; fault: %s: no history breaks a rule, want at least one", mistake, name)
			}
		}
	}
}

// TestRandomHistories injects random pauses, hangs, kills, restarts, moves, changes to readiness
// and packet delays. Both hosts may answer at once for at most gateTime, or for at most OwnerTime
// if loops may hang. At the end, one host must answer.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range wait.Soak(60, 5000) {
		w := randomHistory(seed, false)
		most := gateTime // a host may stop while the other preempts it
		if hangs(seed) {
			most = w.hosts[0].group.OwnerTime()
		}
		if n := w.owners(); n != 1 || w.both > most || w.wrong != "" {
			t.Fatalf("seed %d: owners = %d, want 1; both hosts answered for %s, want at most %s; %s\n%s",
				seed, n, w.both, most, w.wrong, strings.Join(randomHistory(seed, true).log, "\n"))
		}
	}
}

// hangs reports whether the loop of a host may hang in the history of this seed.
func hangs(seed int) bool { return seed%2 == 0 }

func randomHistory(seed int, verbose bool) *world {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	preempt := []time.Duration{vrrp.Never, 0, 300 * ms}[r.IntN(3)]
	w := newWorld(pair(uint8(50+r.IntN(200)), uint8(50+r.IntN(200)), preempt)...)
	w.random, w.verbose = r, verbose
	w.hosts[0].start()
	startAt(w, w.hosts[1], time.Duration(r.IntN(500))*ms)
	for range 12 {
		w.run(time.Duration(r.IntN(700)) * ms)
		w.disturb(w.hosts[r.IntN(2)], hangs(seed))
	}
	for _, h := range w.hosts {
		if h.down || h.loop.stopped > w.now.Add(time.Second) {
			h.start()
		}
		h.input(func(now local.Time) []local.Action { return h.node.Ready(now, "main", "") })
	}
	w.run(3 * time.Second)
	return w
}

func (w *world) disturb(h *host, hangs bool) {
	say := func(what string) { w.notef("%s: %s", h.group.Link.Source, what) }
	switch w.random.IntN(7) {
	case 0:
		d := time.Duration(w.random.IntN(800)) * ms
		say("stopped for " + d.String())
		stopFor(d)(h)
	case 1:
		say("killed")
		kill(h)
	case 2:
		if hangs {
			say("loop hangs")
			hangLoop(h)
		}
	case 3:
		h.start()
	case 4:
		say("moved")
		h.input(func(now local.Time) []local.Action { return h.node.Resign(now, "main") })
	case 5:
		h.input(func(now local.Time) []local.Action { return h.node.Ready(now, "main", "no endpoint") })
	default:
		h.input(func(now local.Time) []local.Action { return h.node.Ready(now, "main", "") })
	}
}
