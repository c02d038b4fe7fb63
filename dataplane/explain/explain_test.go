package explain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/test/fake"
)

// reading is a list of connections that contains one connection and then returns err. If err is
// nil, it blocks instead.
type reading struct{ err error }

func (r reading) Connections(ctx context.Context, _ dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if err := visit(&dataplane.Connection{Client: netip.MustParseAddrPort("10.1.0.2:4000")}); err != nil || r.err != nil {
		return errors.Join(err, r.err)
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestConnectionWithoutAnAnswer explains a client with two unanswered connections. Only the first
// connection's step must contain advice. No step may be marked as wrong, because the connections
// may be new.
func TestConnectionWithoutAnAnswer(t *testing.T) {
	var a Answer
	n := Inputs{Connections: waiting{}}
	a.list(n.existing(t.Context(), &a, 0))
	if len(a.Steps) != 3 || !strings.Contains(a.Steps[0].Text, "10.0.0.1:8080 has not answered 2 ") || !strings.Contains(a.Steps[0].Text, `snat = "always"`) {
		t.Fatalf("steps = %+v, want 3: one for the list, and one for each connection", a.Steps)
	}
	for _, s := range a.Steps {
		if s.Wrong || strings.Count(s.Text, "snat") > 1 {
			t.Errorf("step = %+v, want it not marked as wrong, and the word snat in one step only", s)
		}
	}
	if want := "10.1.0.2:4001 has received no answer from 10.0.0.1:8080 (syn-sent)"; a.Steps[2].Text != want {
		t.Errorf("last step = %q, want %q", a.Steps[2].Text, want)
	}
}

// waiting is a list of two connections that their endpoint has not answered.
type waiting struct{}

func (waiting) Connections(_ context.Context, _ dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	client, backend := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddrPort("10.0.0.1:8080")
	return errors.Join(
		visit(&dataplane.Connection{Client: netip.AddrPortFrom(client, 4000), Backend: backend, State: unanswered}),
		visit(&dataplane.Connection{Client: netip.AddrPortFrom(client, 4001), Backend: backend, State: unanswered}),
	)
}

// TestConnectionsThatCannotBeRead makes the list of connections fail after its first entry. The
// answer must contain this connection, and the reason why there may be more.
func TestConnectionsThatCannotBeRead(t *testing.T) {
	for want, err := range map[string]error{"was not complete in time": nil, "can't be read: no conntrack here": errors.New("no conntrack here")} {
		synctest.Test(t, func(t *testing.T) {
			var a Answer
			n := Inputs{Connections: reading{err}}
			a.list(n.existing(t.Context(), &a, 0))
			if len(a.Existing) != 1 || len(a.Steps) != 2 || !strings.Contains(a.Steps[1].Text, want) || a.Steps[1].Wrong {
				t.Errorf("answer = %+v, want one connection and a step that contains %q", a, want)
			}
		})
	}
}

// TestDoubtful explains a frontend whose last change could not be applied. The answer must describe
// the wanted frontend. For a client on another host, the answer must say that the client's packets
// don't leave that host.
func TestDoubtful(t *testing.T) {
	k := balancer.Key{Addr: netip.MustParseAddr("127.0.0.10"), Port: 80, Proto: balancer.TCP}
	b := netip.MustParseAddrPort("127.0.0.1:8080")
	f := &balancer.Frontend{Key: k, Service: "web", Backends: []balancer.Backend{{Addr: b, Weight: 1, State: balancer.Active}}}
	n := Inputs{Mode: "userspace", Dataplane: leading{to: b}, Connections: reading{errors.New("none")}, Trouble: func(balancer.Key) string { return "the port is in use" }}
	n.Desired.Frontends = n.Desired.Frontends.Set(k, f)
	n.Applied = n.Applied.Set(k, &balancer.Frontend{Key: k})
	a, err := n.Explain(t.Context(), Question{Client: netip.MustParseAddr("127.0.0.1"), To: k})
	if err != nil {
		t.Fatal(err)
	}
	if want := "served by 127.0.0.1:8080, unless a problem marked with ! prevents that"; a.Service != "web" || a.Summary != want {
		t.Errorf("service = %q, summary = %s; want web, %s; steps: %v", a.Service, a.Summary, want, a.Steps)
	}
	i := slices.IndexFunc(a.Steps, func(s Step) bool { return s.What == "frontend" })
	if want := "service web; its last change could not be applied: the port is in use"; a.Steps[i].Text != want || !a.Steps[i].Wrong {
		t.Errorf("step = %+v, want %q, marked as wrong", a.Steps[i], want)
	}

	a, err = n.Explain(t.Context(), Question{Client: netip.MustParseAddr("192.0.2.7"), To: k})
	if want := "not served: packets from 192.0.2.7 to 127.0.0.10 stay on the client's host"; err != nil || a.Verdict != Elsewhere || a.Summary != want {
		t.Errorf("from another host: verdict = %s, summary = %q, %v; want %q", a.Verdict, a.Summary, err, want)
	}

	n.Desired.Frontends = n.Desired.Frontends.Delete(k)
	a, err = n.Explain(t.Context(), Question{Client: netip.MustParseAddr("127.0.0.1"), To: k})
	if want := "unknown: the remains of a removed service are not deleted yet: the port is in use"; err != nil || a.Summary != want {
		t.Errorf("removed service: summary = %q, %v; want %q", a.Summary, err, want)
	}
}

type leading struct {
	*fake.Dataplane
	to netip.AddrPort
}

func (l leading) Explain(context.Context, *balancer.Frontend, netip.AddrPort) (dataplane.Explanation, error) {
	return dataplane.Explanation{Shares: []dataplane.Share{{Backend: l.to, Part: 1}}}, nil
}

// TestSilentEndpoint explains connections to endpoints that do not answer. Except for UDP, the
// summary must say that the endpoint does not answer.
func TestSilentEndpoint(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:8080")
	other := Endpoint{Address: netip.MustParseAddrPort("10.0.0.2:8080"), State: balancer.Active, Weight: 1, Part: 0.5}
	for _, c := range []struct {
		name    string
		proto   balancer.Protocol
		silence Silence
		waits   bool
		others  []Endpoint
		verdict Verdict
		want    string
	}{
		{name: "most", proto: balancer.TCP, silence: Silence{31, 40, "a cause"}, verdict: Dropped, want: "not answered: 10.0.0.1:8080 did not answer 31 of 40 new connections in the last minute"},
		{name: "some", proto: balancer.TCP, silence: Silence{3, 40, "a cause"}, verdict: Served, want: "served by 10.0.0.1:8080, but it did not answer 3 of 40 new connections in the last minute"},
		{
			name: "of two", proto: balancer.SCTP, silence: Silence{40, 40, "a cause"}, others: []Endpoint{other}, verdict: Served,
			want: "served by one of 2 endpoints, but 10.0.0.1:8080 did not answer 40 of 40 new connections in the last minute",
		},
		{name: "waits", proto: balancer.TCP, waits: true, verdict: Served, want: "served by 10.0.0.1:8080, but it has not answered a connection of 10.1.0.2 yet"},
		{name: "UDP", proto: balancer.UDP, silence: Silence{40, 40, "a cause"}, verdict: Served, want: "served by 10.0.0.1:8080"},
		{name: "answers", proto: balancer.TCP, verdict: Served, want: "served by 10.0.0.1:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := balancer.Target{Service: "web", Addr: at.Addr(), Port: at.Port()}
			n := Inputs{Silence: func(x balancer.Target) (Silence, bool) { return c.silence, c.silence.Of > 0 && x == target }}
			a := Answer{Client: netip.MustParseAddr("10.1.0.2"), Service: "web", To: balancer.Key{Proto: c.proto}}
			a.Endpoints = append([]Endpoint{{Address: at, State: balancer.Active, Weight: 1, Part: 0.5, target: target}}, c.others...)
			if c.waits {
				n.Connections = waiting{}
				if err := n.existing(t.Context(), &a, 0); err != nil {
					t.Fatal(err)
				}
			}
			n.silent(&a)
			n.summarize(&a, &balancer.Frontend{Backends: []balancer.Backend{{Addr: at, State: balancer.Active, Weight: 1}}})
			if a.Verdict != c.verdict || a.Summary != c.want {
				t.Errorf("verdict = %s, summary = %q; want %s, %q", a.Verdict, a.Summary, c.verdict, c.want)
			}
		})
	}
}

// TestWithdrawn explains a connection to a withdrawn VIP. The answer must refer to routing. It must
// not mention the service's endpoints or a refusal.
func TestWithdrawn(t *testing.T) {
	k := balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: balancer.TCP}
	f := &balancer.Frontend{Key: k, Service: "web", Withdrawn: true}
	n := Inputs{Mode: "userspace"}
	n.Desired.Frontends, n.Applied = n.Desired.Frontends.Set(k, f), n.Applied.Set(k, f)
	a, err := n.Explain(t.Context(), Question{Client: netip.MustParseAddr("10.1.0.2"), To: k})
	const want = "not served here: 10.96.0.10 is withdrawn, so routing decides which host gets the connection"
	if err != nil || a.Verdict != Elsewhere || a.Summary != want || len(a.Endpoints) > 0 {
		t.Errorf("answer = %+v, %v; want %q", a, err, want)
	}
}

// TestRealServer explains connections to two VIPs for which this host is a real server. At the VIP
// that the host holds, one of its programs must answer. At the other VIP, nothing may answer.
func TestRealServer(t *testing.T) {
	n := Inputs{Mode: "userspace", Dataplane: leading{}}
	for want, at := range map[Verdict]string{Elsewhere: "10.96.0.10:80/tcp", Dropped: "10.96.0.11:80/tcp"} {
		k, err := balancer.ParseKey(at)
		if err != nil {
			t.Fatal(err)
		}
		n.Desired.Direct = n.Desired.Direct.Set(k.Addr, "web")
		if want == Elsewhere {
			n.Held = append(n.Held, host.Held{Addr: k.Addr, Where: "lo", Silent: true})
		}
		a, err := n.Explain(t.Context(), Question{Client: netip.MustParseAddr("10.1.0.2"), To: k})
		if err != nil || a.Verdict != want || want == Elsewhere && !strings.Contains(a.Summary, "this host is a real server of web") {
			t.Errorf("%s: answer = %s (%s), %v, want %s", k, a.Verdict, a.Summary, err, want)
		}
	}
}
