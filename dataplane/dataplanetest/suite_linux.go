package dataplanetest

import (
	"context"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// Subject is a dataplane that must conform.
type Subject struct {
	// Name identifies the subject in messages.
	Name string
	// New returns a dataplane over the objects that an earlier dataplane left on the host. The
	// suite closes it.
	New func(t testing.TB) dataplane.Dataplane
	// Host returns the host that manages addresses and the guard. If nil, there is none, and all
	// VIPs are local. This is sufficient for dataplanes that terminate connections themselves. The
	// cases that need the guard are skipped.
	Host func(t testing.TB) dataplane.Host
	// ExactWeights reports whether weights are exact over each cycle of connections. Otherwise they
	// are compared as random shares. Round robin is exact in every dataplane.
	ExactWeights bool
	// Keeps reports whether, after Close with keep, frontends are served without the dataplane, and
	// the next one adopts them without losing a connection.
	Keeps bool
	// Survives reports whether Keeps holds even when its process is killed.
	Survives bool
	// Backend is the variant of iptables that the dataplane and its Host use, nft or legacy. If
	// empty, iptables reports it.
	Backend string
	// Connections is the number of connections, open at the same time, by which the case spread may
	// judge shares. Default 10,000.
	Connections int
	// Remembers is the time for which the dataplane treats a connection that its client has reset,
	// or a UDP flow, as existing. Affinity lasts at least that long, and max_connections includes
	// such connections. The default is zero.
	Remembers time.Duration
	// Cleanup removes everything that dataplane and Host ever made, as after a crash. If nil, there
	// is nothing to clean up.
	Cleanup func(t testing.TB)
	// Damage damages or removes objects of the dataplane on the host, each function in another way.
	// The suite expects that the damage is detected and repaired.
	Damage map[string]func(t testing.TB)
	// Scratches is like Damage, with functions that only damage the service at heldVIP. Clients of
	// other services notice nothing.
	Scratches map[string]func(t testing.TB)
	// Ends names the functions of Damage and Scratches that end connections, which no repair could
	// prevent, with the reason.
	Ends map[string]string
	// VirtualServers reports whether the dataplane creates virtual servers of IPVS, with which
	// foreign servers can conflict.
	VirtualServers bool
	// Skip names the cases that the subject can't pass by the names of their subtests below Run,
	// such as "kills" or "layouts/one-arm/hairpin/udp6", with the reason.
	Skip map[string]string

	ports *ports
	root  string // the name of the test that called Run
	stage *stage
	// foreign are the current foreign virtual servers.
	foreign map[string]string
	caps    *balancer.Capabilities // capabilities of the last dataplane from New
}

// check is one case of the suite.
type check struct {
	name string
	// guard reports whether the case needs a Host's guard.
	guard bool
	// needs are tools that the case uses itself.
	needs []string
	run   func(t *testing.T, s *Subject)
}

func checks() []check {
	return []check{
		{name: "layouts", run: testLayouts},
		{name: "policy-drop", guard: true, needs: []string{"iptables", "ip6tables"}, run: testPolicyDrop},
		{name: "snat", run: testSNAT},
		{name: "straight", needs: []string{"ip", "iptables", "ip6tables"}, run: testStraight},
		{name: "uplinks", guard: true, needs: []string{"ip", "iptables", "ip6tables"}, run: testUplinks},
		{name: "waiting", guard: true, needs: []string{"ip", "iptables", "ip6tables"}, run: testWaiting},
		{name: "narrow", needs: []string{"ss", "iptables", "ip6tables"}, run: testNarrow},
		{name: "routed", run: testRouted},
		{name: "damage", run: testDamage},
		{name: "foreign", needs: foreignTools(), run: testForeign},
		{name: "foreign-servers", needs: []string{"ipvsadm"}, run: testForeignServers},
		{name: "withdrawn", guard: true, run: testWithdrawn},
		{name: "drains", run: testDrains},
		{name: "kills", needs: foreignTools(), run: testKills},
	}
}

// Run runs the suite, or only the named cases. The package's TestMain must call lab.Main.
func Run(t *testing.T, s Subject, names ...string) {
	if os.Getenv(childVar) != "" {
		runChild(t, &s)
		return
	}
	lab.Require(t)
	s.ports, s.root = &ports{}, t.Name()
	s.all(t, slices.DeleteFunc(checks(), func(c check) bool { return names != nil && !slices.Contains(names, c.name) }))
	dp := s.New(t)
	s.leftNothing(t, dp)
	if err := dp.Close(context.Background(), false); err != nil {
		t.Errorf("closing the last dataplane: %v", err)
	}
}

// all runs cases as subtests.
func (s *Subject) all(t *testing.T, cases []check) {
	for _, c := range cases {
		s.sub(t, c.name, func(t *testing.T) {
			if c.guard && s.Host == nil {
				t.Skip("needs a Host with the guard")
			}
			lab.Need(t, c.needs...)
			c.run(t, s)
		})
	}
}

// sub runs a subtest of that name unless the subject skips it.
func (s *Subject) sub(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		if why, ok := s.Skip[strings.TrimPrefix(t.Name(), s.root+"/")]; ok {
			t.Skip(why)
		}
		f(t)
	})
}

// rig is a subject that runs in a world.
type rig struct {
	*testing.T
	s    *Subject
	w    *world
	dp   dataplane.Dataplane
	host dataplane.Host
	caps balancer.Capabilities
	// resets reports whether clients end their requests by a reset, because dataplanes then do not
	// remember the connections for minutes.
	resets bool
	// explained has the questions that explains has asked.
	explained map[asked]bool
	*driver
}

// newRig builds a layout around a host and starts the subject in it, with no services yet. At the
// end of the test the subject is closed, and must leave nothing: the next rig checks that, and
// finally Run.
func newRig(t *testing.T, s *Subject, lay layout, host dataplane.Host) *rig {
	t.Helper()
	r := equip(t, s, lay.build(t, lab.New(t)), host)
	s.leftNothing(t, r.dp)
	r.drive()
	return r
}

// newStill returns a rig with its own host and a dataplane that no engine drives yet.
func newStill(t *testing.T, s *Subject, w *world) *rig {
	t.Helper()
	return equip(t, s, w, s.newHost(t))
}

// equip returns a rig with a new dataplane.
func equip(t *testing.T, s *Subject, w *world, host dataplane.Host) *rig {
	t.Helper()
	r := &rig{T: t, s: s, w: w, dp: s.New(t), host: host, explained: map[asked]bool{}}
	r.caps = r.dp.Capabilities()
	s.caps = &r.caps
	t.Cleanup(func() { r.close(r.dp) })
	return r
}

// drive starts the engine. When the test ends, it removes all services and stops.
func (r *rig) drive() { r.driveEvery(wait.Scaled(driverProbe)) }

// driveEvery is drive with another interval between two checks for damage.
func (r *rig) driveEvery(probe time.Duration) {
	r.steer(probe)
	r.endDriven()
}

// endDriven removes all services and stops the engine when the test ends.
func (r *rig) endDriven() {
	r.Cleanup(func() {
		if err := r.wait(r.set()); err != nil {
			r.Errorf("removing every service: %v", err)
		}
		r.stop()
	})
}

// steer starts an engine for the dataplane after another engine has ended.
func (r *rig) steer(probe time.Duration) {
	r.prepare(probe)
	r.start()
}

// prepare is like steer, but does not start the engine.
func (r *rig) prepare(probe time.Duration) {
	env := balancer.Env{Node: "node", Local: r.w.own, NodePortAddresses: r.w.own}
	r.driver = newDriver(r.dp, r.host, quiet(r.T), env, probe)
}

// capabilities returns the dataplane's capabilities on this host.
func (s *Subject) capabilities(t *testing.T) *balancer.Capabilities {
	t.Helper()
	if s.caps == nil {
		dp := s.New(t)
		caps := dp.Capabilities()
		s.caps = &caps
		if err := dp.Close(context.Background(), false); err != nil {
			t.Errorf("closing the dataplane: %v", err)
		}
	}
	return s.caps
}

// newHost keeps the host until the end of the test, when nothing of it may be left.
func (s *Subject) newHost(t testing.TB) dataplane.Host {
	if s.Host != nil {
		t.Cleanup(func() { nothingOfOurs(t, "after the end") })
		return s.Host(t)
	}
	return bareHost(t)
}

// closeTime bounds the end of a dataplane.
const closeTime = 30 * time.Second

func (r *rig) close(dp dataplane.Dataplane) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Scaled(closeTime))
	defer cancel()
	if err := dp.Close(ctx, false); err != nil {
		r.Errorf("closing the dataplane: %v", err)
	}
}

// optional returns the dataplane as a T. Every mode that runs the case must implement T.
func optional[T any](r *rig) T {
	r.Helper()
	d, ok := dataplane.As[T](r.dp)
	if !ok {
		r.Fatalf("the dataplane is not a %v, want one", reflect.TypeFor[T]())
	}
	return d
}

// leftNothing checks that a fresh dataplane finds no object of its predecessors.
func (s *Subject) leftNothing(t *testing.T, dp dataplane.Dataplane) {
	t.Helper()
	seen, err := dp.Observe(context.Background())
	if err != nil {
		t.Errorf("observing earlier objects: %v", err)
	}
	if len(seen.Digests) > 0 {
		t.Errorf("objects of a closed dataplane = %v, want none", seen.Digests)
	}
	if left := s.leftServers(t); len(left) > len(s.foreign) {
		t.Errorf("virtual servers of a closed dataplane = %q, want only foreign servers", left)
	}
}

// apply requests exactly these services, and waits until they are applied.
func (r *rig) apply(services ...*balancer.Service) {
	r.Helper()
	if err := r.wait(r.set(services...)); err != nil {
		r.Fatal(err)
	}
}

// step runs a part of a case as a subtest.
func (r *rig) step(name string, f func(r *rig)) {
	r.Helper()
	r.s.sub(r.T, name, func(t *testing.T) {
		sub := *r
		sub.T = t
		f(&sub)
	})
}

// each calls f for both families and both protocols, as subtests, with the key of the world's VIP.
func (r *rig) each(f func(r *rig, key balancer.Key)) {
	r.Helper()
	r.eachOf(balancer.TCP, f)
	r.eachOf(balancer.UDP, f)
}

// eachOf is each for one protocol.
func (r *rig) eachOf(proto balancer.Protocol, f func(r *rig, key balancer.Key)) {
	r.Helper()
	for i, family := range []string{"4", "6"} {
		r.step(string(proto)+family, func(r *rig) { f(r, keyOf(r.w.vip[i], vipPort, proto)) })
	}
}
