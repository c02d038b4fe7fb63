package packetflow

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/explain"
	"vipd/test/lab"
)

// explained compares vipd's explanation of a row with the row, and describes the difference. If
// there is none, it returns "". The caller has already sent real packets for the row, so affinity
// knows the client.
func (w *world) explained(r row, network string) string {
	to, err := r.destination()
	if err != nil {
		return err.Error()
	}
	status := w.engine.Status()
	desired, _ := w.engine.Wanted()
	connections, _ := dataplane.As[dataplane.ListsConnections](w.dp)
	n := explain.Inputs{
		Desired: desired, Applied: status.Done, Mode: w.caps.Mode, Dataplane: w.dp, Connections: connections, Held: w.host.Addresses(),
	}
	client := addressOf(r.client, to.Addr())
	a, err := n.Explain(w.t.Context(), explain.Question{
		Client: client, To: balancer.Key{Addr: to.Addr(), Port: balancer.PortRange(to.Port()), Proto: balancer.Protocol(network)},
	})
	if err != nil {
		return err.Error()
	}
	if want := w.explanation(r, status.Done.Has(a.To)); a.Verdict != want {
		return fmt.Sprintf("explained as %s (%s), want %s", a.Verdict, a.Summary, want)
	}
	for _, s := range a.Steps {
		if s.Wrong && a.Verdict == explain.Served {
			return fmt.Sprintf("explained with %q, which does not keep it from being served", s.Text)
		}
	}
	if a.Verdict != explain.Served || r.verdict != served {
		return ""
	}
	return w.explainedServed(r, network, &a)
}

// explanation returns the verdict that the explanation of a row must have.
func (w *world) explanation(r row, service bool) explain.Verdict {
	to, literal := netip.ParseAddrPort(r.to)
	switch {
	case r.verdict == lost && !w.caps.KeepsSource:
		return explain.Served
	case !service && !(literal == nil && w.keeps(to.Addr())):
		return explain.Elsewhere
	}
	return explain.Verdict(r.verdict)
}

func (w *world) keeps(a netip.Addr) bool {
	for _, h := range w.host.Addresses() {
		if h.Addr == a {
			return h.Where != "host"
		}
	}
	return false
}

// explainedServed compares an explanation's shares and sources with the row. If the explanation
// names a single endpoint, that endpoint must answer.
func (w *world) explainedServed(r row, network string, a *explain.Answer) string {
	total, parts, only := 0, 0.0, ""
	for _, share := range r.answers {
		total += share
	}
	for _, e := range a.Endpoints {
		name := nameOf(e.Address.Addr())
		if e.Part == 0 {
			continue
		}
		parts += e.Part
		if e.Part == 1 {
			only = name
		}
		if want := float64(r.answers[name]) / float64(total); !slices.Contains(r.names(), name) || !r.stays && math.Abs(e.Part-want) > 0.02 {
			return fmt.Sprintf("explained as served by %s with a share of %v, want %v", name, e.Part, r.answers)
		}
		if node := r.seesNode(name) || r.client == "local" || !w.caps.KeepsSource; node != e.SNAT {
			return fmt.Sprintf("explained as if %s sees an address of the node's: %v, want %v", name, e.SNAT, node)
		}
	}
	if math.Abs(parts-1) > 0.001 {
		return fmt.Sprintf("the explained shares are %v together", parts)
	}
	if !r.stays || r.client == "local" || w.caps.Mode == "ipvs" && !a.Sticky.IsValid() {
		return "" // a program on the node has several addresses, and only the kernel knows IPVS's hashes
	}
	answer, err := w.ask(r, network, atOnce)
	if err != nil || answer.Server != only {
		return fmt.Sprintf("explained as served by %q alone; %s answers, %v", only, answer.Server, err)
	}
	return ""
}

// TestUnforwarded disables the forwarding of clients' packets, and then of replies. The packets and
// the explanations must have the expected results.
func TestUnforwarded(t *testing.T) { unforwarded(t, modes()[1]) }

// TestIPVSUnforwarded makes the same check as TestUnforwarded, but in ipvs mode, whose virtual
// servers forward clients' packets themselves.
func TestIPVSUnforwarded(t *testing.T) {
	lab.NeedIPVS(t)
	unforwarded(t, ipvsMode())
}

func unforwarded(t *testing.T, m mode) {
	w := newWorld(t, m)
	w.apply(t, readSections(t)[0])
	node := w.hosts["local"]
	all := map[string]int{"s1": 1, "s2": 1, "s3": 1}
	check := func(rows ...row) {
		for _, r := range rows {
			if wrong := cmp.Or(w.check(r, "tcp"), w.explained(r, "tcp")); wrong != "" {
				t.Errorf("%s to %s: %s", r.client, r.to, wrong)
			}
		}
	}
	node.Sysctl("net.ipv6.conf.all.forwarding", "0")
	node.Sysctl("net.ipv4.conf.far.forwarding", "0")
	far := row{client: "far", to: "vip", verdict: dropped}
	if w.caps.Mode == "ipvs" {
		far = row{client: "far", to: "vip", verdict: served, answers: all}
	}
	check(far, row{client: "far", to: "vip6", verdict: dropped},
		row{client: "local", to: "vip6", verdict: served, answers: all, nodeAt: "*"},
		row{client: "near", to: "vip", verdict: served, answers: all, nodeAt: "s3"})

	node.Sysctl("net.ipv4.conf.far.forwarding", "1")
	for _, device := range []string{"s1", "s2", "lan"} {
		node.Sysctl("net.ipv4.conf."+device+".forwarding", "0")
	}
	check(row{client: "far", to: "vip", verdict: dropped}) // no reply is forwarded

	if _, err := os.Stat("/proc/sys/net/ipv6/conf/lo/force_forwarding"); err != nil {
		return
	}
	for _, device := range []string{"far", "s1", "s2", "lan"} {
		node.Sysctl("net.ipv6.conf."+device+".force_forwarding", "1")
	}
	check(row{client: "far", to: "vip6", verdict: served, answers: all})
}
