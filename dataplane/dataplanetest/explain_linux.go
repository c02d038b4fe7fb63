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

// asked is a question to package explain. Each question is checked only once per revision of the
// services, because test cases send hundreds of packets.
type asked struct {
	from     *lab.NS
	key      balancer.Key
	revision int64
}

// checkExplained checks that package explain predicts what happens to real packets. If the packets
// were served, explain must not report a missing object.
func checkExplained(r *rig, from *lab.NS, source netip.Addr, key balancer.Key, want explain.Verdict) {
	r.Helper()
	if r.driver == nil || key.Proto == balancer.SCTP {
		return // package explain needs an engine, and a client with a known address
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
		want = explain.Lost // package explain does not know the servers' routes
	}
	lab.Eventually(r, settleTime, "an explanation of the applied state", func() (wrong error) { // a drain may end during the check
		status = r.engine.Status()
		// No connections are passed to explain, because existing connections do not affect the
		// verdict. A search for them would take 10 ms, because the kernel reads the whole conntrack
		// table.
		n := explain.Inputs{Desired: r.wanted(), Applied: status.Done, Mode: r.caps.Mode, Dataplane: r.dp}
		if _, f := balancer.FrontendAt(n.Applied, key); f == nil {
			return nil // package explain does not know the effects of other programs
		}
		a, err := n.Explain(r.Context(), explain.Question{Client: source, To: key})
		i := slices.IndexFunc(a.Objects, func(o dataplane.Object) bool { return o.Missing })
		switch {
		case err != nil || a.Verdict != want:
			wrong = fmt.Errorf("%s at %s: verdict on real packets = %s, but explain returns %s (%s), %v", from.Name, key, want, a.Verdict, a.Summary, err)
		case i >= 0 && want == explain.Served:
			wrong = fmt.Errorf("%s at %s: packets are served, but explain reports a missing object: %s", from.Name, key, a.Objects[i].Name)
		}
		if done := n.Desired.Revision.Store; wrong == nil || status.Applied.Store != done || r.engine.Status().Applied.Store != done || r.wanted().Revision.Store != done {
			return wrong
		}
		r.Error(wrong)
		return nil
	})
}
