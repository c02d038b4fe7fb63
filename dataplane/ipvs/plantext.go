package ipvs

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// RenderMarks returns the marks of packets to port ranges in nft's syntax, or "".
func RenderMarks(frontends []*balancer.Frontend) string {
	var all []*server
	for _, f := range frontends {
		if s := (&server{key: f.Key, front: f}); f.Key.Port.IsRange() && len(s.fresh()) > 0 {
			s.exists = true
			all = append(all, s)
		}
	}
	kind := rangeMarks()
	return kind.Render(openMarks(slices.Values(all)))
}

// Render returns the virtual servers of frontends as input of ipvsadm --restore.
func Render(frontends []*balancer.Frontend) string {
	frontends = slices.SortedFunc(slices.Values(frontends), func(f, g *balancer.Frontend) int { return f.Key.Compare(g.Key) })
	var b strings.Builder
	for _, f := range frontends {
		s := server{key: f.Key, front: f}
		for _, op := range s.fresh() {
			b.WriteString(line(op) + "\n")
		}
	}
	return b.String()
}

func (s *server) fresh() []ipvsnl.Op {
	p := s.plan(time.Time{})
	return append(p.create, p.change...)
}

// line returns an op as a line of ipvsadm --save -n. It adds thresholds, which ipvsadm omits, at
// the end.
func line(op ipvsnl.Op) string {
	words := []string{"-a", command(op.Service.Key)}
	if op.Verb == ipvsnl.AddService {
		words = []string{"-A", command(op.Service.Key), "-s", op.Service.Scheduler}
		if op.Service.Flags&ipvsnl.Persistent != 0 {
			words = append(words, "-p", strconv.Itoa(int(op.Service.Timeout/time.Second)))
		}
		if prefix := op.Service.Prefix; prefix > 0 && op.Service.Key.Addr.Is4() {
			words = append(words, "-M", net.IP(net.CIDRMask(prefix, 32)).String())
		} else if prefix > 0 {
			words = append(words, "-M", strconv.Itoa(prefix))
		}
		if op.Service.Flags&ipvsnl.Fallback != 0 {
			words = append(words, "-b", op.Service.Scheduler+"-fallback")
		}
		return strings.Join(words, " ")
	}
	d := op.Destination
	how := map[balancer.Forward]string{balancer.NATForward: "-m", balancer.DRForward: "-g", balancer.TunnelForward: "-i"}[d.Forward]
	to := d.Addr
	if op.Service.Key.Port.IsRange() {
		to = netip.AddrPortFrom(to.Addr(), 0) // keeps the port
	}
	words = append(words, "-r", to.String(), how, "-w", strconv.Itoa(d.Weight))
	if d.Upper > 0 {
		words = append(words, "-x", strconv.Itoa(int(d.Upper)), "-y", strconv.Itoa(int(d.Lower)))
	}
	return strings.Join(words, " ")
}
