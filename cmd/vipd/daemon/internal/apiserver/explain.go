package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/dataplane"
	"vipd/dataplane/explain"
)

// explainTime is the timeout of an explanation, which reads the kernel's state and other programs'
// firewalls.
const explainTime = 8 * time.Second

// getExplain describes the path of a connection. With ?live=1, it also opens a connection from this
// node.
func (srv server) getExplain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), explainTime)
	defer cancel()
	q := r.URL.Query()
	client, err := balancer.ParseTarget("", q.Get("client"))
	var key balancer.Key
	if err == nil {
		key, err = balancer.ParseKey(q.Get("to"))
	}
	if err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	v := srv.Views.Look()
	node := explain.Inputs{
		Desired: v.State.Desired, Applied: v.Sync.Done, Mode: string(v.Mode.Name), Dataplane: v.Mode.Dataplane, Connections: srv.Views.Modes,
		Held: srv.Views.Addresses(), Why: whyOf(v),
		Trouble: func(k balancer.Key) string {
			if failure, failing := v.Sync.Failing[k]; failing {
				return failure.Error()
			}
			return ""
		},
		Silence: srv.Silence,
		Foreign: func(k balancer.Key) []explain.Step {
			_, f := balancer.FrontendAt(v.State.Desired.Frontends, k)
			return srv.drops(ctx, f)
		},
	}
	a, err := node.Explain(ctx, explain.Question{Client: client.Addr, Port: client.Port, To: key})
	if err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	out := api.Explanation{Answer: a}
	if q.Get("live") != "" {
		if a.Service == "" || key.Proto != balancer.TCP {
			httpserve.Refuse(w, http.StatusBadRequest, fmt.Errorf("%s is not a TCP port of a service, and --live connects only to TCP ports of services", key))
			return
		}
		out.Live = srv.tryLive(ctx, key)
	}
	httpserve.Answer(w, out)
}

// drops returns a step for each rule of another program that drops connections to f, or that their
// packets bypass.
func (srv server) drops(ctx context.Context, f *balancer.Frontend) (all []explain.Step) {
	if f == nil {
		return nil
	}
	h := srv.Examined()
	h.Frontends = []doctor.Frontend{doctor.FrontendOf(f)}
	for _, found := range doctor.Drops(ctx, h) {
		all = append(all, explain.Step{What: "foreign", Text: found.What, Wrong: found.Level != doctor.Note})
	}
	return all
}

// whyOf returns a function that explains the state of a backend.
func whyOf(v *status.View) func(*balancer.Frontend, balancer.Backend) string {
	var of balancer.Name
	endpoints := map[string]*api.Endpoint{}
	return func(f *balancer.Frontend, b balancer.Backend) string {
		if service := v.State.Snapshot.Services.At(f.Service); of != f.Service && service != nil {
			of = f.Service
			all := v.EndpointsOf(service)
			for i := range all {
				endpoints[all[i].Address] = &all[i]
			}
		}
		if e := endpoints[b.Addr.String()]; e != nil {
			return withName(why(e), e.Name)
		}
		return ""
	}
}

// withName adds an endpoint's DNS name, if any, to the explanation of its state.
func withName(why, name string) string {
	switch {
	case name == "":
		return why
	case why == "":
		return "an address of " + name
	}
	return why + "; an address of " + name
}

func why(e *api.Endpoint) string {
	switch {
	case e.State == balancer.Draining && e.Override != nil && e.Override.Drains():
		_, by := e.Override.Signatures()
		return "drained by an override" + byWhom(by)
	case e.State == balancer.Draining && e.Agent != nil && e.Agent.State == balancer.AgentDrained:
		return "drained by its agent: " + e.Agent.Text
	case e.State == balancer.Draining:
		return "drained in its definition"
	case e.State == balancer.Down && e.Agent != nil && e.Agent.State == balancer.AgentDown:
		return "reported down by its agent: " + e.Agent.Text
	case e.State == balancer.ZeroWeight && e.Agent != nil && e.Agent.Percent == 0:
		return "has weight 0, set by its agent: " + e.Agent.Text
	case e.State == balancer.ZeroWeight && e.Override != nil:
		by, _ := e.Override.Signatures()
		return "has weight 0, set by an override" + byWhom(by)
	case e.State == balancer.Standby:
		return "a backup that is not used while other endpoints are up"
	case e.State == balancer.Remote:
		return "skipped by locality"
	case e.State == balancer.Insufficient:
		return "fewer endpoints are usable than min_usable requires"
	case e.State == balancer.Removed:
		return "no longer an endpoint of the service"
	case e.Ejection != nil:
		return "connections to it fail"
	case e.Check != nil && e.Check.LastText != "":
		return "its check: " + e.Check.LastText
	}
	return cmp.Or(string(e.Health), "not checked")
}

func byWhom(s balancer.Signature) (text string) {
	if s.By != "" {
		text = " by " + s.By
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}

// livePause is the interval between searches for the endpoint of a live connection.
const livePause = 5 * time.Millisecond

// tryLive opens a connection from this node and closes it. It returns the connection's endpoint and
// how long connecting took.
func (srv server) tryLive(ctx context.Context, k balancer.Key) *api.Live {
	started := time.Now()
	c, err := (&net.Dialer{Timeout: explainTime / 2}).DialContext(ctx, "tcp", k.AddrPort().String())
	l := &api.Live{Connected: time.Since(started)}
	if err != nil {
		l.Error = err.Error()
		return l
	}
	defer func() { _ = c.Close() }() // nothing was written
	l.Client, err = netip.ParseAddrPort(c.LocalAddr().String())
	for err == nil && !l.Endpoint.IsValid() {
		var found []dataplane.Connection
		found, err = dataplane.Connections(ctx, srv.Views.Modes, dataplane.ConnectionQuery{Frontend: k, Client: l.Client})
		for _, n := range found {
			if n.State != "connecting" {
				l.Endpoint = n.Backend
				l.State = n.State
				l.Taken = time.Since(started)
			}
		}
		if err == nil && !l.Endpoint.IsValid() {
			if !wake.Sleep(ctx, livePause) {
				err = fmt.Errorf("the connection was accepted, but does not appear in the list of connections: %w", ctx.Err())
			}
		}
	}
	if err != nil && !l.Endpoint.IsValid() { // if the endpoint was found, an incomplete list is sufficient
		l.Error = err.Error()
	}
	return l
}
