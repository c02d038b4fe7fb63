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

// Subject describes a dataplane that the suite tests.
type Subject struct {
	// Name identifies the subject in failure texts.
	Name string
	// New returns a new dataplane. The host may still have an earlier dataplane's objects. The
	// suite closes the new dataplane.
	New func(t testing.TB) dataplane.Dataplane
	// Host returns the host that manages addresses and the guard. If Host is nil, all VIPs are
	// local addresses, which is sufficient for dataplanes that terminate connections themselves.
	// The suite then skips cases that need the guard.
	Host func(t testing.TB) dataplane.Host
	// ExactWeights reports whether each cycle of connections is distributed exactly by weight.
	// Otherwise, the distribution may deviate as much as random choices would. Round robin must be
	// exact in every dataplane.
	ExactWeights bool
	// Keeps reports whether frontends are still served after Close with keep, and the next
	// dataplane adopts them without losing a connection.
	Keeps bool
	// Survives reports whether frontends are also served and adopted if the process is killed.
	Survives bool
	// Backend is the iptables variant that the dataplane and its Host use, "nft" or "legacy". If
	// empty, the host's default variant is used.
	Backend string
	// Connections is the maximum number of concurrent connections from which the case "spread"
	// calculates shares. Zero means 10,000.
	Connections int
	// Remembers is how long the dataplane still counts a UDP flow without traffic, or a connection
	// that its client has reset, as existing. Affinity lasts at least that long, and
	// max_connections includes these connections. Zero means that the dataplane forgets them
	// immediately.
	Remembers time.Duration
	// Cleanup removes everything that the dataplane and its Host have created, as after a crash.
	// Nil means that there is nothing to clean up.
	Cleanup func(t testing.TB)
	// Damage holds named functions. Each damages or removes the dataplane's objects on the host.
	// The dataplane must detect and repair the damage.
	Damage map[string]func(t testing.TB)
	// Scratches is like Damage, but its functions affect only the service at heldVIP. Clients of
	// other services must not be disturbed.
	Scratches map[string]func(t testing.TB)
	// Ends names the functions in Damage and Scratches that end connections, which no repair could
	// prevent. Each value is the reason.
	Ends map[string]string
	// VirtualServers reports whether the dataplane creates IPVS virtual servers, which can conflict
	// with foreign virtual servers.
	VirtualServers bool
	// Skip maps the test cases and subtests that the subject can't pass to the reasons. Their names
	// are relative to Run, such as "kills" or "layouts/one-arm/hairpin/udp6".
	Skip map[string]string

	ports *ports
	root  string // name of the test that called Run
	stage *stage
	// foreign holds the foreign virtual servers that currently exist.
	foreign map[string]string
	caps    *balancer.Capabilities // capabilities of the dataplane that New returned last
}

// check is one test case of the suite.
type check struct {
	name string
	// guard reports whether the case can run only on a Host with the guard.
	guard bool
	// needs lists the programs that the case itself runs.
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

// sub runs f as a subtest, unless Skip names this subtest.
func (s *Subject) sub(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		if why, ok := s.Skip[strings.TrimPrefix(t.Name(), s.root+"/")]; ok {
			t.Skip(why)
		}
		f(t)
	})
}

// rig is a subject that is running in a layout.
type rig struct {
	*testing.T
	s    *Subject
	w    *world
	dp   dataplane.Dataplane
	host dataplane.Host
	caps balancer.Capabilities
	// resets reports whether clients close their connections with a reset. Dataplanes do not
	// remember such connections for minutes.
	resets bool
	// explained holds the questions to package explain that checkExplained has already checked.
	explained map[asked]bool
	*driver
}

// newRig builds a layout around a host, and starts the subject in this layout without services.
// When the test ends, the subject is closed. By then, it must have removed all of its objects,
// which the next newRig and the end of Run check.
func newRig(t *testing.T, s *Subject, lay layout, host dataplane.Host) *rig {
	t.Helper()
	r := equip(t, s, lay.build(t, lab.New(t)), host)
	s.leftNothing(t, r.dp)
	r.drive()
	return r
}

// newStill returns a rig with a new host and a new dataplane without an engine.
func newStill(t *testing.T, s *Subject, w *world) *rig {
	t.Helper()
	return equip(t, s, w, s.newHost(t))
}

func equip(t *testing.T, s *Subject, w *world, host dataplane.Host) *rig {
	t.Helper()
	r := &rig{T: t, s: s, w: w, dp: s.New(t), host: host, explained: map[asked]bool{}}
	r.caps = r.dp.Capabilities()
	s.caps = &r.caps
	t.Cleanup(func() { r.close(r.dp) })
	return r
}

// drive starts an engine. When the test ends, all services are removed and the engine stops.
func (r *rig) drive() { r.driveEvery(wait.Scaled(driverProbe)) }

// driveEvery is like drive, but sets the interval at which the engine checks for damage.
func (r *rig) driveEvery(probe time.Duration) {
	r.steer(probe)
	r.endDriven()
}

// endDriven registers a cleanup that removes all services and stops the engine.
func (r *rig) endDriven() {
	r.Cleanup(func() {
		if err := r.wait(r.set()); err != nil {
			r.Errorf("removing every service: %v", err)
		}
		r.stop()
	})
}

// steer starts another engine for the rig's dataplane. The previous engine must have stopped.
func (r *rig) steer(probe time.Duration) {
	r.prepare(probe)
	r.start()
}

// prepare is like steer, but does not start the new engine.
func (r *rig) prepare(probe time.Duration) {
	env := balancer.Env{Node: "node", Local: r.w.own, NodePortAddresses: r.w.own}
	r.driver = newDriver(r.dp, r.host, quiet(r.T), env, probe)
}

func (s *Subject) capabilities(t *testing.T) *balancer.Capabilities {
	t.Helper()
	if s.caps == nil {
		dp := s.New(t)
		caps := dp.Capabilities()
		s.caps = &caps
		if err := dp.Close(context.Background(), false); err != nil {
			t.Errorf("error of Close = %v, want nil", err)
		}
	}
	return s.caps
}

// newHost returns a host that exists until the test ends. By then, it must have removed all of its
// objects.
func (s *Subject) newHost(t testing.TB) dataplane.Host {
	if s.Host != nil {
		t.Cleanup(func() { nothingOfOurs(t, "after the end") })
		return s.Host(t)
	}
	return bareHost(t)
}

// closeTime is how long closing a dataplane may take.
const closeTime = 30 * time.Second

func (r *rig) close(dp dataplane.Dataplane) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Scaled(closeTime))
	defer cancel()
	if err := dp.Close(ctx, false); err != nil {
		r.Errorf("error of Close = %v, want nil", err)
	}
}

// optional returns the rig's dataplane as the interface T. Every mode that runs the test case must
// implement T.
func optional[T any](r *rig) T {
	r.Helper()
	d, ok := dataplane.As[T](r.dp)
	if !ok {
		r.Fatalf("the dataplane does not implement %v, want an implementation", reflect.TypeFor[T]())
	}
	return d
}

// leftNothing checks that a new dataplane finds no objects from earlier dataplanes.
func (s *Subject) leftNothing(t *testing.T, dp dataplane.Dataplane) {
	t.Helper()
	seen, err := dp.Observe(context.Background())
	if err != nil {
		t.Errorf("error of Observe = %v, want nil", err)
	}
	if len(seen.Digests) > 0 {
		t.Errorf("objects left by a closed dataplane = %v, want none", seen.Digests)
	}
	if left := s.leftServers(t); len(left) > len(s.foreign) {
		t.Errorf("virtual servers after a dataplane was closed = %q, want only foreign servers", left)
	}
}

// apply requests exactly these services, and waits until the engine has applied them.
func (r *rig) apply(services ...*balancer.Service) {
	r.Helper()
	if err := r.wait(r.set(services...)); err != nil {
		r.Fatal(err)
	}
}

// step runs f, a part of a test case, as a subtest.
func (r *rig) step(name string, f func(r *rig)) {
	r.Helper()
	r.s.sub(r.T, name, func(t *testing.T) {
		sub := *r
		sub.T = t
		f(&sub)
	})
}

// each calls f with the key of the world's VIP, in a subtest for each family and for TCP and UDP.
func (r *rig) each(f func(r *rig, key balancer.Key)) {
	r.Helper()
	r.eachOf(balancer.TCP, f)
	r.eachOf(balancer.UDP, f)
}

// eachOf is like each, but for only one protocol.
func (r *rig) eachOf(proto balancer.Protocol, f func(r *rig, key balancer.Key)) {
	r.Helper()
	for i, family := range []string{"4", "6"} {
		r.step(string(proto)+family, func(r *rig) { f(r, keyOf(r.w.vip[i], vipPort, proto)) })
	}
}
