package dataplanetest

import (
	"context"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
)

// stage is the layout "routed" with a running Host. Consecutive test cases share a stage, each with
// its own dataplane, because building a layout and a Host takes longer than most cases.
type stage struct {
	w    *world
	host dataplane.Host
}

func scenes() []check {
	return []check{
		{name: "targets", run: driven(testTargets)},
		{name: "host-endpoint", run: driven(testHostEndpoint)},
		{name: "ports", run: driven(testPorts)},
		{name: "sctp", run: driven(testSCTP)},
		{name: "many", run: driven(testMany)},
		{name: "spread", needs: []string{"ip"}, run: driven(testSpread)},
		{name: "shares", run: driven(testShares)},
		{name: "sticky-schedulers", run: driven(testStickySchedulers)},
		{name: "hashes", needs: []string{"ip"}, run: driven(testHashes)},
		{name: "max-connections", run: driven(testMaxConnections)},
		{name: "affinity", run: driven(testAffinity)},
		{name: "affinity-ends", run: driven(testAffinityEnds)},
		{name: "affinity-scope", run: driven(testAffinityScope)},
		{name: "affinity-prefix", run: driven(testAffinityPrefix)},
		{name: "ranges", run: driven(testRanges)},
		{name: "moved-ranges", run: driven(testMovedRanges)},
		{name: "source-ranges", run: driven(testSourceRanges)},
		{name: "limits", run: driven(testLimits)},
		{name: "no-endpoints", run: driven(testNoEndpoints)},
		{name: "no-endpoints-drop", run: driven(testNoEndpointsDrop)},
		{name: "drain-timeout", run: driven(testDrainTimeout)},
		{name: "service-drains", run: driven(testServiceDrains)},
		{name: "on-failure", run: driven(testOnFailure)},
		{name: "port-reuse", needs: []string{"ip"}, run: driven(testPortReuse)},
		{name: "killed", run: driven(testKilled)},
		{name: "undisturbed", run: driven(testUndisturbed)},
		{name: "udp-follows", run: driven(testUDPFollows)},
		{name: "streams", run: driven(testStreams)},
		{name: "strays", run: driven(testStrays)},
		{name: "connections", run: driven(testConnections)},
		{name: "held-vip", guard: true, needs: []string{"ping"}, run: driven(testHeldVIP)},
		{name: "unanswered", needs: []string{"iptables", "ip6tables"}, run: driven(testUnanswered)},
		{name: "idempotent", run: bared(testIdempotent)},
		{name: "order", run: bared(testOrder)},
		{name: "close", run: bared(testClose)},
	}
}

// Scenes returns the names of the cases that run as subtests of the case "routed".
func Scenes() []string {
	var names []string
	for _, c := range scenes() {
		names = append(names, c.name)
	}
	return names
}

// newStage builds a stage that exists until the test ends.
func newStage(t *testing.T, s *Subject) *stage {
	t.Helper()
	w := layouts()[0].build(t, lab.New(t))
	return &stage{w, s.newHost(t)}
}

// testRouted runs all cases that scenes returns on one stage.
func testRouted(t *testing.T, s *Subject) {
	s.stage = newStage(t, s)
	s.all(t, scenes())
}

// onStage returns a rig that uses the stage's host and a new dataplane without an engine.
func onStage(t *testing.T, s *Subject) *rig {
	t.Helper()
	r := equip(t, s, s.stage.w.during(t), s.stage.host)
	s.leftNothing(t, r.dp)
	return r
}

// driven returns a function that runs the case f on a stage, with an engine that drives the
// dataplane.
func driven(f func(r *rig)) func(t *testing.T, s *Subject) {
	return func(t *testing.T, s *Subject) {
		r := onStage(t, s)
		r.drive()
		f(r)
	}
}

// bared returns a function that runs the case f on a stage, without an engine.
func bared(f func(b *bare)) func(t *testing.T, s *Subject) {
	return func(t *testing.T, s *Subject) {
		b := &bare{onStage(t, s)}
		t.Cleanup(func() {
			if err := b.host.Finish(context.Background(), balancer.Desired{}.Frontends); err != nil {
				t.Errorf("removing the host's objects: %v", err)
			}
		})
		f(b)
	}
}

// during returns a copy of the world for a subtest. When the subtest ends, everything that it has
// added to the world's namespaces is removed.
func (w *world) during(t testing.TB) *world {
	v := *w
	v.host, v.client, v.servers = w.host.For(t), w.client.For(t), nil
	for _, s := range w.servers {
		c := *s
		c.ns = s.ns.For(t)
		v.servers = append(v.servers, &c)
	}
	return &v
}
