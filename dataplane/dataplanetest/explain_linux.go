package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/explain"
	"vipd/test/lab"
)

// asked is a question to explain. Each question is explained only once per revision, because cases
// send hundreds of packets.
type asked struct {
	from     *lab.NS
	key      balancer.Key
	revision int64
}

// checkExplained checks that explain predicts the outcome of real packets, and reports no failure
// if they were served.
func checkExplained(r *rig, from *lab.NS, source netip.Addr, key balancer.Key, want explain.Verdict) {
	r.Helper()
	if r.driver == nil || key.Proto == balancer.SCTP {
		return // explained only with an engine and a client with a known address
	}
	status := r.engine.Status()
	q := asked{from, key, status.Applied.Store}
	if _, known := r.explained[q]; known && !source.IsValid() {
		return
	}
	r.explained[q] = true
	if !source.IsValid() {
		source = r.addressOf(from, key.Addr)
	}
	if r.w.detour && want == explain.Served && r.caps.KeepsSource && from != r.w.host {
		want = explain.Lost // the routes of a server are not known here
	}
	lab.Eventually(r, settleTime, "explaining what is carried out", func() (wrong error) { // a drain may end meanwhile
		status = r.engine.Status()
		// Existing connections do not affect the verdict, and a search for them costs 10 ms,
		// because the kernel reads conntrack's whole table.
		n := explain.Inputs{Desired: r.wanted(), Applied: status.Done, Mode: r.caps.Mode, Dataplane: r.dp}
		if _, f := balancer.FrontendAt(n.Applied, key); f == nil {
			return nil // explain does not know the effects of other programs
		}
		a, err := n.Explain(r.Context(), explain.Question{Client: source, To: key})
		i := slices.IndexFunc(a.Objects, func(o dataplane.Object) bool { return o.Missing })
		switch {
		case err != nil || a.Verdict != want:
			wrong = fmt.Errorf("%s at %s, which packets find %s: explained as %s (%s), %v", from.Name, key, want, a.Verdict, a.Summary, err)
		case i >= 0 && want == explain.Served:
			wrong = fmt.Errorf("%s at %s is served, and explained with what is missing: %s", from.Name, key, a.Objects[i].Name)
		}
		if done := n.Desired.Revision.Store; wrong == nil || status.Applied.Store != done || r.engine.Status().Applied.Store != done || r.wanted().Revision.Store != done {
			return wrong
		}
		r.Error(wrong)
		return nil
	})
}
