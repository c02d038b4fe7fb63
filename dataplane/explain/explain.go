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
	// Port is the client's port, or 0 for any port. It is only used to find an existing connection.
	Port uint16
	To   balancer.Key
}

// Inputs holds the data on which an answer depends.
type Inputs struct {
	// Desired is the wanted state. Applied holds the frontends in the kernel.
	Desired balancer.Desired
	Applied snap.Map[balancer.Key, *balancer.Frontend]
	// Mode is the name of the current mode. Dataplane is its dataplane.
	Mode      string
	Dataplane dataplane.Dataplane
	// Connections lists the existing connections. If nil, they are not searched.
	Connections dataplane.ListsConnections
	// Held lists the holder of each VIP.
	Held []host.Held
	// Trouble returns the reason why a frontend is not applied as wanted. Why returns the reason
	// for a backend's state. Either may be nil.
	Trouble func(balancer.Key) string
	Why     func(f *balancer.Frontend, b balancer.Backend) string
	// Silence returns an endpoint's unanswered connections, or false if no connection was
	// unanswered. It may be nil.
	Silence func(balancer.Target) (Silence, bool)
	// Foreign returns steps about the effects of other programs' rules on connections to a
	// frontend. It is nil if the rules were not checked.
	Foreign func(balancer.Key) []Step
}

// Verdict is the predicted result of a connection.
type Verdict string

// These are the verdicts.
const (
	// Served means that an endpoint answers.
	Served Verdict = "served"
	// Refused means a TCP reset, or an ICMP port unreachable message.
	Refused Verdict = "refused"
	// Dropped means that the client gets no answer.
	Dropped Verdict = "dropped"
	// Lost means that the endpoint's reply bypasses this node, so the client rejects it.
	Lost Verdict = "lost"
	// Elsewhere means that vipd has no frontend at this address and does not affect the connection.
	Elsewhere Verdict = "elsewhere"
)

// Answer is the predicted result of a connection, with the reasons.
type Answer struct {
	Client  netip.Addr   `json:"client"`
	To      balancer.Key `json:"to"`
	Verdict Verdict      `json:"verdict"`
	// Summary states the verdict in a sentence.
	Summary string        `json:"summary"`
	Mode    string        `json:"mode"`
	Service balancer.Name `json:"service,omitempty"`
	Port    string        `json:"port,omitempty"`
	// Steps lists the decisions in order.
	Steps []Step `json:"steps"`
	// Endpoints lists the frontend's endpoints.
	Endpoints []Endpoint `json:"endpoints"`
	dataplane.Explanation
	// Existing lists the client's connections to the frontend. Their packets still reach their
	// endpoints.
	Existing []dataplane.Connection `json:"existing"`
}

// Silence counts the new connections that an endpoint did not answer in the last minute.
type Silence struct {
	Unanswered, Of uint64
	// Cause is the probable cause, with the command that fixes it.
	Cause string
}

// numbers returns String's text without the cause.
func (s Silence) numbers() string {
	return fmt.Sprintf("did not answer %d of %d new connections in the last minute", s.Unanswered, s.Of)
}

// String returns the text that follows the endpoint's address, with the cause.
func (s Silence) String() string { return s.numbers() + ": " + s.Cause }

// Step is a decision on the path of the connection.
type Step struct {
	What string `json:"what"`
	Text string `json:"text"`
	// Wrong reports whether the decision prevents the client from being served as configured.
	Wrong bool `json:"wrong,omitempty"`
}

// Endpoint is an endpoint to which the connection may be sent.
type Endpoint struct {
	Address netip.AddrPort        `json:"address"`
	State   balancer.BackendState `json:"state"`
	Weight  int                   `json:"weight"`
	// Why is the reason for the endpoint's state.
	Why string `json:"why,omitempty"`
	// Part is the endpoint's share of this client's new connections, from 0 to 1.
	Part float64 `json:"part"`
	// SNAT reports whether the endpoint sees an address of this node instead of the client's. Lost
	// reports whether the endpoint's reply bypasses this node. Source explains why.
	SNAT   bool   `json:"snat"`
	Lost   bool   `json:"lost,omitempty"`
	Source string `json:"source,omitempty"`
	// target identifies the endpoint. For a port range, its port is the first port.
	target balancer.Target
	// silent is the text for an endpoint that does not answer. It is "" if no connection is known
	// to be unanswered.
	silent string
	// mostly reports whether at least half of the endpoint's new connections were unanswered.
	mostly bool
	// stopped is the sysctl that prevents this host from forwarding packets between the client and
	// the endpoint.
	stopped string
}

// maxExisting is the maximum number of existing connections in an answer. readingTime limits the
// search for them.
const (
	maxExisting = 10
	readingTime = 3 * time.Second
)

// Explain answers a question. It returns an error if a part of the state could not be read.
func (n *Inputs) Explain(ctx context.Context, q Question) (Answer, error) {
	a := &Answer{Client: q.Client, To: q.To, Mode: n.Mode, Steps: []Step{}, Endpoints: []Endpoint{}, Existing: []dataplane.Connection{}}
	if q.Client.Is4() != q.To.Addr.Is4() {
		return *a, fmt.Errorf("%s and %s are of different families: an IPv4 client can't connect to an IPv6 address, or vice versa", q.Client, q.To.Addr)
	}
	n.address(a)
	key, f := balancer.FrontendAt(n.Applied, q.To)
	doubtful := f != nil && f.Service == "" // a change failed, so the kernel is queried for the wanted frontend
	if doubtful {
		f = n.Desired.Frontends.At(key)
	}
	if f == nil {
		n.unserved(a)
		return *a, nil
	}
	a.Service, a.Port = f.Service, f.Port
	n.frontend(a, f, doubtful)
	if f.Withdrawn {
		a.step("address", false, "none of its services has a usable endpoint, so this node neither holds it nor refuses clients")
		a.verdict(Elsewhere, "not served here: %s is withdrawn, so routing decides which host gets the connection", a.To.Addr)
		return *a, nil
	}
	from, err := host.RouteTo(q.Client)
	if err != nil {
		a.step("client", true, "%v", err)
	}
	if a.To.Addr.IsLoopback() && !from.Local {
		a.step("client", true, "%s is not an address of this host, and packets to a loopback address stay on the client's host", a.Client)
		a.verdict(Elsewhere, "not served: packets from %s to %s stay on the client's host", a.Client, a.To.Addr)
		return *a, nil
	}
	objects := n.source(a, f, from)
	a.limits(f, from)
	if a.Verdict != "" {
		a.Objects = objects
		return *a, nil
	}
	if d, explains := dataplane.As[dataplane.Explains](n.Dataplane); explains {
		if a.Explanation, err = d.Explain(ctx, f, netip.AddrPortFrom(q.Client, q.Port)); err != nil {
			return *a, err
		}
	}
	a.Objects = append(a.Objects, objects...)
	n.choose(a, f)
	n.wayBack(a, f, from)
	n.objects(a)
	unread := n.existing(ctx, a, q.Port)
	n.silent(a)
	if n.Foreign != nil {
		a.Steps = append(a.Steps, n.Foreign(a.To)...)
	}
	a.list(unread)
	n.summarize(a, f)
	return *a, nil
}

func (a *Answer) step(what string, wrong bool, format string, args ...any) {
	a.Steps = append(a.Steps, Step{What: what, Text: fmt.Sprintf(format, args...), Wrong: wrong})
}

func (a *Answer) verdict(v Verdict, format string, args ...any) {
	a.Verdict, a.Summary = v, fmt.Sprintf(format, args...)
}

// frontend adds a step that names the frontend and says whether it is applied as wanted. doubtful
// reports whether its state in the kernel is unknown.
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
		a.step("frontend", false, "%s; a change to it is about to be applied", what)
	default:
		a.step("frontend", false, "%s, applied in %s mode", what, n.Mode)
	}
}

func nameOf(f *balancer.Frontend) string {
	text := "service " + string(f.Service)
	if f.Port != "" {
		text += ", port " + f.Port
	}
	if f.Key.Port.IsRange() {
		text += " (" + f.Key.Port.String() + ")"
	}
	return text
}

func (n *Inputs) trouble(k balancer.Key) string {
	if n.Trouble == nil {
		return ""
	}
	return n.Trouble(k)
}

// source adds a step that shows whether source_ranges permit the client. It returns the guard's
// objects for the frontend.
func (n *Inputs) source(a *Answer, f *balancer.Frontend, from host.Route) []dataplane.Object {
	objects, has, err := guard.Explain(f, a.Client)
	if err != nil {
		a.step("guard", true, "the guard can't be read: %v", err)
	}
	if n.Dataplane.Traits().Needs == (dataplane.Needs{}) { // this dataplane serves without the guard
		objects = slices.DeleteFunc(objects, func(o dataplane.Object) bool { return o.Missing })
	}
	may := f.Allows(a.Client)
	switch {
	case f.AcceptProxyProtocol && !f.AllowsClient(a.Client):
		a.step("source", true, "%s is not in source_ranges %v", a.Client, f.Clients)
		a.verdict(Refused, "reset: %s may not connect to %s", a.Client, f.Service)
	case f.AcceptProxyProtocol:
		a.step("source", false, "a source in trusted %v must send a PROXY header that contains %s", f.Sources, a.Client)
	case len(f.Sources) == 0:
		a.step("source", false, "any client may connect")
	case from.Local:
		a.step("source", false, "%s is this node, which may always connect", a.Client)
	case !may:
		a.step("source", true, "%s is not in source_ranges %v", a.Client, f.Sources)
		a.verdict(Dropped, "dropped: %s may not connect to %s", a.Client, f.Service)
	default:
		a.step("source", false, "source_ranges include %s", a.Client)
		if err == nil && !has && !n.Dataplane.Capabilities().EnforcesSources {
			a.step("source", true, "the kernel's set of allowed clients does not contain it yet")
		}
	}
	return objects
}

// limits adds a step about client limits, if the service has any.
func (a *Answer) limits(f *balancer.Frontend, from host.Route) {
	switch {
	case f.Limits.IsZero():
	case from.Local:
		a.step("limits", false, "%s is this node, which has no limits", a.Client)
	default:
		a.step("limits", false, "this node limits clients of %s: %s; a connection over a limit is not served", f.Service, f.Limits)
	}
}

// unanswered is the conntrack state of TCP connections without a reply from the endpoint.
const unanswered = "syn-sent"

// errMore means that the client has more connections than the answer may list.
var errMore = errors.New("there are more")

// existing adds the client's existing connections to the answer, except connections that have
// ended. If the list may be incomplete, it returns the reason, for example that reading a large
// table takes too long.
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
		if len(a.Existing) == maxExisting {
			return errMore
		}
		a.Existing = append(a.Existing, *c)
		return nil
	})
}

// list adds a step for each of the client's connections. Unanswered connections come first, with
// advice. unread is the reason why the list may be incomplete.
func (a *Answer) list(unread error) {
	waiting := map[netip.AddrPort]int{}
	for _, c := range a.Existing {
		if c.State == unanswered {
			waiting[c.Backend]++
		}
	}
	for _, backend := range slices.SortedFunc(maps.Keys(waiting), netip.AddrPort.Compare) {
		a.step("existing", false, "%s has not answered %d of the connections below. If its checks pass, its answers bypass this node: give it a "+
			"route to the client through this node, or set snat = \"always\"", backend, waiting[backend])
	}
	for _, c := range a.Existing {
		if c.State == unanswered {
			a.step("existing", false, "%s has received no answer from %s (%s)", c.Client, c.Backend, c.State)
			continue
		}
		a.step("existing", false, "%s stays connected to %s (%s)", c.Client, c.Backend, c.State)
	}
	switch {
	case errors.Is(unread, errMore):
		a.step("existing", false, "and more")
	case errors.Is(unread, context.DeadlineExceeded):
		a.step("existing", false, "the list of connections was not complete in time: there might be more connections")
	case unread != nil:
		a.step("existing", false, "connections can't be read: %v", unread)
	}
}

// silent marks the endpoints that do not answer: an endpoint with unanswered connections in the
// last minute, or that has not yet answered a connection from this client.
func (n *Inputs) silent(a *Answer) {
	if a.To.Proto == balancer.UDP { // a UDP service need not answer
		return
	}
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		if e.Part == 0 {
			continue
		}
		if n.Silence != nil {
			if s, found := n.Silence(e.target); found {
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
			text += ": missing from the kernel"
		}
		a.step("object", o.Missing, "%s", text)
	}
}

func left(d time.Duration) string { return d.Round(time.Second).String() }
