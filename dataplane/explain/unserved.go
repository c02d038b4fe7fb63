package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/host"
	"vipd/dataplane/internal/inet"
)

// address adds a step that shows who holds the address: vipd, the host itself, or another host.
func (n *Inputs) address(a *Answer) {
	to := a.To.Addr
	held := n.held(to)
	switch {
	case held == nil && to.IsLoopback():
		a.step("address", false, "%s is a loopback address", to)
	case held == nil:
		if own, err := host.RouteTo(to); err == nil && own.Local {
			a.step("address", false, "%s is this node's own address, and not a VIP", to)
		} else {
			a.step("address", true, "%s is not a VIP of this node", to)
		}
	case held.Silent:
		a.step("address", false, "%s is a VIP that this host holds silently, for direct routing", to)
	case held.Where == "none":
		a.step("address", true, "%s is a VIP that this node does not hold%s", to, note(held))
	case held.Where == "host":
		a.step("address", false, "%s is a VIP, and the host's own address%s", to, note(held))
	default:
		a.step("address", false, "%s is a VIP that vipd holds on %s%s", to, held.Where, note(held))
	}
}

func note(h *host.Held) string {
	if h.Note == "" {
		return ""
	}
	return " (" + h.Note + ")"
}

func (n *Inputs) held(at netip.Addr) *host.Held {
	i := slices.IndexFunc(n.Held, func(h host.Held) bool { return h.Addr == at })
	if i < 0 {
		return nil
	}
	return &n.Held[i]
}

// addedByVipd reports whether vipd added the address, so connections to the address's other ports
// are refused.
func (n *Inputs) addedByVipd(at netip.Addr) bool {
	h := n.held(at)
	return h != nil && h.Where != "none" && h.Where != "host"
}

// unserved explains why no frontend is applied for the requested address and port.
func (n *Inputs) unserved(a *Answer) {
	key, want := balancer.FrontendAt(n.Desired.Frontends, a.To)
	late := func(text string) string {
		if trouble := n.trouble(key); trouble != "" {
			text += ": " + trouble
		}
		a.step("frontend", true, "%s", text)
		return text
	}
	if want != nil {
		a.Service, a.Port = want.Service, want.Port
		a.verdict(Refused, "not served: %s", late(nameOf(want)+" is not applied yet"))
		return
	}
	if _, left := balancer.FrontendAt(n.Applied, a.To); left != nil {
		a.verdict(Refused, "unknown: %s", late("the remains of a removed service are not deleted yet"))
		return
	}
	if n.realServer(a) {
		return
	}
	var here []balancer.Key
	for k := range n.Desired.Frontends.Keys() {
		if k.Addr == a.To.Addr {
			here = append(here, k)
		}
	}
	switch {
	case len(here) > 0 && n.addedByVipd(a.To.Addr):
		a.step("frontend", true, "no service on %s uses %s; its services use %s", a.To.Addr, place(a.To), places(here))
		a.verdict(Refused, "refused: %s answers only on its services' ports", a.To.Addr)
	case len(here) > 0:
		a.step("frontend", true, "no service on %s uses %s; its services use %s", a.To.Addr, place(a.To), places(here))
		a.verdict(Elsewhere, "not served by vipd: if a program listens on %s, it answers", place(a.To))
	default:
		a.step("frontend", true, "no service uses %s%s", a.To, n.nearest(a.To))
		a.verdict(Elsewhere, "not served by vipd: the kernel handles the connection as it would without vipd")
	}
}

func place(k balancer.Key) string { return fmt.Sprintf("%s/%s", k.Port, k.Proto) }

func places(keys []balancer.Key) string {
	const most = 8
	words := make([]string, 0, most)
	for _, k := range keys[:min(len(keys), most)] {
		words = append(words, place(k))
	}
	text := strings.Join(words, ", ")
	if len(keys) > most {
		text += fmt.Sprintf(" and %d more", len(keys)-most)
	}
	return text
}

// nearest describes the wanted frontend whose address has the longest common prefix with the
// requested address. If several frontends have that address, it describes the frontend with the
// nearest port.
func (n *Inputs) nearest(k balancer.Key) string {
	var best *balancer.Frontend
	score := func(f *balancer.Frontend) int {
		return 1<<17*inet.CommonBits(f.Addr, k.Addr) - distance(f.Key.Port.First(), k.Port.First())
	}
	for _, f := range n.Desired.Frontends.All() {
		if f.Addr.Is4() == k.Addr.Is4() && (best == nil || cmp.Compare(score(f), score(best)) > 0) {
			best = f
		}
	}
	if best == nil {
		return ""
	}
	return fmt.Sprintf("; the most similar frontend is %s (%s)", best.Key, best.Service)
}

func distance(a, b uint16) int { return max(int(a)-int(b), int(b)-int(a)) }
