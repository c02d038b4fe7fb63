package explain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/host"
)

// Question is a connection that a client may open.
type Question struct {
	Client netip.Addr
	// Port is the client's; 0 means any. Nothing is decided by it, but an existing connection is found.
	Port uint16
	To   balancer.Key
}

// Inputs are everything that an answer depends on.
type Inputs struct {
	// Desired is what is wanted, and Applied the frontends that are in the kernel.
	Desired balancer.Desired
	Applied snap.Map[balancer.Key, *balancer.Frontend]
	// Mode is the name of the mode that serves, and Dataplane carries it out.
	Mode      string
	Dataplane dataplane.Dataplane
	// Connections has the connections that exist; nil means that none is looked for.
	Connections dataplane.ListsConnections
	// Held says who holds each VIP.
	Held []host.Held
	// Trouble says why a frontend is not applied as wanted, and Why why a backend has its state. Both may be nil.
	Trouble func(balancer.Key) string
	Why     func(f *balancer.Frontend, b balancer.Backend) string
	// Silence returns what is known of an endpoint that left new connections without an answer; false means nothing. It may be nil.
	Silence func(balancer.Target) (Silence, bool)
	// Foreign says what rules of others do to connections to a frontend; nil means that it was not looked for.
	Foreign func(balancer.Key) []string
}

// Verdict is what a client gets.
type Verdict string

// The verdicts.
const (
	// Served: an endpoint answers.
	Served Verdict = "served"
	// Refused: a TCP reset, or ICMP port unreachable.
	Refused Verdict = "refused"
	// Dropped: no answer at all.
	Dropped Verdict = "dropped"
	// Lost: an endpoint answers past this node, so that the client does not know the answer for one.
	Lost Verdict = "lost"
	// Elsewhere: it meets no frontend of vipd's; the connection passes as it would without vipd.
	Elsewhere Verdict = "elsewhere"
)

// Answer is what would happen to a connection.
type Answer struct {
	Client  netip.Addr   `json:"client"`
	To      balancer.Key `json:"to"`
	Verdict Verdict      `json:"verdict"`
	// Summary is the verdict in a sentence.
	Summary string        `json:"summary"`
	Mode    string        `json:"mode"`
	Service balancer.Name `json:"service,omitempty"`
	Port    string        `json:"port,omitempty"`
	// Steps are the decisions in their order.
	Steps []Step `json:"steps"`
	// Endpoints are those of the frontend.
	Endpoints []Endpoint `json:"endpoints"`
	dataplane.Explanation
	// Existing are connections of the client to the frontend. Their packets go where they went before.
	Existing []dataplane.Connection `json:"existing"`
}

// Silence is how many new connections an endpoint left without an answer in the last minute.
type Silence struct {
	Unanswered, Of uint64
	// Cause is the likely cause, and the command that fixes it.
	Cause string
}

// numbers writes what follows the endpoint's address, without the cause.
func (s Silence) numbers() string {
	return fmt.Sprintf("did not answer %d of %d new connections in the last minute", s.Unanswered, s.Of)
}

// String writes a sentence about the endpoint, without its address.
func (s Silence) String() string { return s.numbers() + ": " + s.Cause }

// Step is one decision.
type Step struct {
	What string `json:"what"`
	Text string `json:"text"`
	// Wrong: it keeps the client from being served as written.
	Wrong bool `json:"wrong,omitempty"`
}

// Endpoint is one that the connection may or may not be led to.
type Endpoint struct {
	Address netip.AddrPort        `json:"address"`
	State   balancer.BackendState `json:"state"`
	Weight  int                   `json:"weight"`
	// Why says why it has that state.
	Why string `json:"why,omitempty"`
	// Part is its share of new connections of this client, 0 to 1.
	Part float64 `json:"part"`
	// SNAT: it sees an address of this node in place of the client's; Lost: its reply misses this node. Source says why.
	SNAT   bool   `json:"snat"`
	Lost   bool   `json:"lost,omitempty"`
	Source string `json:"source,omitempty"`
	// silent says that it does not answer, in words that follow its address; "" means that it does, as far as is known.
	silent string
	// mostly reports whether at least half of its new connections had no answer.
	mostly bool
	// stopped is the sysctl by which this host does not forward the client's packets to it, or its to the client.
	stopped string
}

// mostExisting bounds the existing connections in an answer, and readingTime the search for them.
const (
	mostExisting = 10
	readingTime  = 3 * time.Second
)

// Explain answers a question. An error says what could not be read.
func (n *Inputs) Explain(ctx context.Context, q Question) (Answer, error) {
	a := &Answer{Client: q.Client, To: q.To, Mode: n.Mode, Steps: []Step{}, Endpoints: []Endpoint{}, Existing: []dataplane.Connection{}}
	if q.Client.Is4() != q.To.Addr.Is4() {
		return *a, fmt.Errorf("%s and %s are of different families: an IPv4 client can't connect to an IPv6 address, nor the other way round", q.Client, q.To.Addr)
	}
	n.address(a)
	f := n.Applied.At(q.To)
	doubtful := f != nil && f.Service == "" // a change failed: the kernel is asked as for what is wanted
	if doubtful {
		f = n.Desired.Frontends.At(q.To)
	}
	if f == nil {
		n.unserved(a)
		return *a, nil
	}
	a.Service, a.Port = f.Service, f.Port
	n.frontend(a, f, doubtful)
	from, err := host.RouteTo(q.Client)
	if err != nil {
		a.step("client", true, "%v", err)
	}
	if a.To.Addr.IsLoopback() && !from.Local {
		a.step("client", true, "%s is no address of this host, and a loopback address leads to the client's own host", a.Client)
		a.verdict(Elsewhere, "not served: what %s sends to %s stays on its own host", a.Client, a.To.Addr)
		return *a, nil
	}
	objects := n.source(a, f, from)
	if a.Verdict != "" {
		a.Objects = objects
		return *a, nil
	}
	if d, explains := dataplane.As[dataplane.Explains](n.Dataplane); explains {
		if a.Explanation, err = d.Explain(ctx, f, q.Client); err != nil {
			return *a, err
		}
	}
	a.Objects = append(a.Objects, objects...)
	n.choose(a, f)
	n.wayBack(a, f, from)
	n.objects(a)
	unread := n.existing(ctx, a, q.Port)
	n.silent(a)
	n.foreign(a)
	a.list(unread)
	n.conclude(a, f)
	return *a, nil
}

func (a *Answer) step(what string, wrong bool, format string, args ...any) {
	a.Steps = append(a.Steps, Step{What: what, Text: fmt.Sprintf(format, args...), Wrong: wrong})
}

func (a *Answer) verdict(v Verdict, format string, args ...any) {
	a.Verdict, a.Summary = v, fmt.Sprintf(format, args...)
}

// frontend says which one it is, and whether it is as wanted. Doubtful: what is there of it is unknown.
func (n *Inputs) frontend(a *Answer, f *balancer.Frontend, doubtful bool) {
	what := nameOf(f)
	if f.NodePort {
		what += ", its node port"
	}
	want := n.Desired.Frontends.At(f.Key)
	switch trouble := n.trouble(f.Key); {
	case trouble != "":
		a.step("frontend", true, "%s; its last change could not be applied: %s", what, trouble)
	case want == nil:
		a.step("frontend", true, "%s; about to be removed", what)
	case want != f || doubtful:
		a.step("frontend", false, "%s; a change of it is about to be applied", what)
	default:
		a.step("frontend", false, "%s, applied in %s mode", what, n.Mode)
	}
}

// nameOf names the service and port of a frontend.
func nameOf(f *balancer.Frontend) string {
	text := "service " + string(f.Service)
	if f.Port != "" {
		text += ", port " + f.Port
	}
	return text
}

func (n *Inputs) trouble(k balancer.Key) string {
	if n.Trouble == nil {
		return ""
	}
	return n.Trouble(k)
}

// source checks source ranges. It returns the objects of the guard that concern the frontend.
func (n *Inputs) source(a *Answer, f *balancer.Frontend, from host.Route) []dataplane.Object {
	objects, has, err := guard.Explain(f, a.Client)
	if err != nil {
		a.step("guard", true, "the guard can't be read: %v", err)
	}
	if n.Dataplane.Traits().Needs == (dataplane.Needs{}) { // it serves alike without the guard
		objects = slices.DeleteFunc(objects, func(o dataplane.Object) bool { return o.Missing })
	}
	may := f.Allows(a.Client)
	switch {
	case len(f.Sources) == 0:
		a.step("source", false, "any client may connect")
	case from.Local:
		a.step("source", false, "%s is this node, which always may connect", a.Client)
	case !may:
		a.step("source", true, "%s is in none of source_ranges %v", a.Client, f.Sources)
		a.verdict(Dropped, "dropped: %s may not connect to %s", a.Client, f.Service)
	default:
		a.step("source", false, "source_ranges have %s", a.Client)
		if err == nil && !has && !n.Dataplane.Capabilities().EnforcesSources {
			a.step("source", true, "the kernel's set of allowed clients does not have it yet")
		}
	}
	return objects
}

// unanswered is the state of TCP connections in conntrack to which the endpoint has said nothing.
const unanswered = "syn-sent"

// errMore says that the client has more connections than are listed.
var errMore = errors.New("there are more")

// existing finds connections of the client that there are, without those that have ended and are only remembered. All else is explained
// without them if they can't be read: reading a large table may take longer than there is time.
func (n *Inputs) existing(ctx context.Context, a *Answer, port uint16) (unread error) {
	if n.Connections == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readingTime)
	defer cancel()
	q := dataplane.ConnectionQuery{Frontend: a.To, Client: netip.AddrPortFrom(a.Client, port)}
	return n.Connections.Connections(ctx, q, func(c *dataplane.Connection) error {
		if c.Closed() {
			return nil
		}
		if len(a.Existing) == mostExisting {
			return errMore
		}
		a.Existing = append(a.Existing, *c)
		return nil
	})
}

// list adds a step for each connection of the client. Before these, it says once for each endpoint that leaves some without an answer what
// helps. Unread is why there may be others.
func (a *Answer) list(unread error) {
	waiting := map[netip.AddrPort]int{}
	for _, c := range a.Existing {
		if c.State == unanswered {
			waiting[c.Backend]++
		}
	}
	for _, backend := range slices.SortedFunc(maps.Keys(waiting), netip.AddrPort.Compare) {
		a.step("existing", false, "%s has not answered %d of the connections below: if its checks pass, its answers do not come back through this node: "+
			"it needs a route to the client by this node, or the service snat = \"always\"", backend, waiting[backend])
	}
	for _, c := range a.Existing {
		if c.State == unanswered {
			a.step("existing", false, "%s has no answer from %s (%s)", c.Client, c.Backend, c.State)
			continue
		}
		a.step("existing", false, "%s goes on to %s (%s)", c.Client, c.Backend, c.State)
	}
	switch {
	case errors.Is(unread, errMore):
		a.step("existing", false, "and more")
	case errors.Is(unread, context.DeadlineExceeded):
		a.step("existing", false, "the list of connections did not come to its end in time: there may be others")
	case unread != nil:
		a.step("existing", false, "connections can't be read: %v", unread)
	}
}

// silent marks the endpoints that do not answer: those with a share of unanswered connections, and those that leave one of this
// client's waiting now.
func (n *Inputs) silent(a *Answer) {
	if a.To.Proto == balancer.UDP { // one-way UDP is normal
		return
	}
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		if e.Part == 0 {
			continue
		}
		if n.Silence != nil {
			if s, found := n.Silence(balancer.Target{Service: a.Service, Addr: e.Address.Addr(), Port: e.Address.Port()}); found {
				e.silent, e.mostly = s.numbers(), 2*s.Unanswered >= s.Of
				a.step("answers", true, "%s %s", e.Address, s)
				continue
			}
		}
		waits := func(c dataplane.Connection) bool { return c.State == unanswered && c.Backend == e.Address }
		if slices.ContainsFunc(a.Existing, waits) {
			e.silent = "has not answered a connection of " + a.Client.String() + " yet"
		}
	}
}

func (n *Inputs) objects(a *Answer) {
	for _, o := range a.Objects {
		text := o.Name
		if o.Says != "" {
			text += ": " + o.Says
		}
		if o.Packets != nil {
			text += fmt.Sprintf(" (counted %d)", *o.Packets)
		}
		if o.Missing {
			text += ": missing in the kernel"
		}
		a.step("object", o.Missing, "%s", text)
	}
}

func (n *Inputs) foreign(a *Answer) {
	if n.Foreign == nil {
		return
	}
	for _, text := range n.Foreign(a.To) {
		a.step("foreign", true, "%s", text)
	}
}

// left writes how long affinity remembers the client.
func left(d time.Duration) string { return d.Round(time.Second).String() }
