package netfilter

import (
	"net/netip"
	"slices"
	"time"
)

// flow is a packet on its way.
type flow struct {
	rules    *Ruleset
	family   *family
	host     Host
	chance   chance
	src, dst netip.AddrPort
	proto    Protocol
	// in and out are the interfaces as rules see them; "": none here.
	in, out string
	mark    uint32
	conn    Conn
	// fresh: the packet is the first of its connection, and what nat decides is not decided yet, for each end.
	freshDst, freshSrc, masqueraded bool
	// ours: it is in the host's own output, where REDIRECT leads to loopback.
	ours bool
	v    Verdict
}

// chance decides what rules leave open, and keeps what they change.
type chance interface {
	toss(probability float64) bool
	count(n *nth) bool
	has(s *set, e entry) bool
	add(s *set, e entry, lasts time.Duration, exist bool)
}

func newFlow(r *Ruleset, p Packet, host Host, c chance) *flow {
	f := &flow{
		rules: r, family: r.families[p.Dst.Addr().Is6()], host: host, chance: c,
		src: p.Src, dst: p.Dst, proto: p.Proto, in: p.In, mark: p.Mark, conn: p.Conn, v: Verdict{sent: p},
	}
	if f.conn.State == "" {
		f.conn.State = New
	}
	if f.conn.State == New || !f.conn.client.IsValid() {
		f.conn.client, f.conn.asked, f.conn.source, f.conn.server = p.Src, p.Dst, p.Src, p.Dst
	}
	f.freshDst = f.conn.State == New
	f.freshSrc = f.freshDst
	f.masqueraded = f.conn.source != f.conn.client
	return f
}

func (f *flow) toss(p float64) bool {
	switch p {
	case 0:
		return false
	case 1:
		return true
	}
	return f.chance.toss(p)
}

func (f *flow) count(n *nth) bool { return f.chance.count(n) }

func (f *flow) inSet(s *set, sides []string) bool {
	e, ok := s.key(f, sides)
	return ok && f.chance.has(s, e)
}

func (f *flow) addTo(s *set, sides []string, lasts time.Duration, exist bool) {
	if e, ok := s.key(f, sides); ok {
		f.chance.add(s, e, lasts, exist)
	}
}

// translated reports which ends of the connection are rewritten.
func (f *flow) translated() (dnat, snat bool) {
	if f.conn.State == Untracked || f.conn.State == Invalid {
		return false, false
	}
	return f.conn.server != f.conn.asked, f.conn.source != f.conn.client
}

func (f *flow) redirectAddr() netip.Addr {
	switch {
	case !f.ours:
		return f.host.Address(f.in, f.family.v6)
	case f.family.v6:
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// walk takes the packet through the stack.
func (f *flow) walk() Verdict {
	if f.v.Fate = f.pass(); f.v.Fate == Forwarded {
		f.v.Out = f.out
	}
	if f.v.RejectWith != "" {
		f.v.Fate = Rejected
	}
	f.v.Src, f.v.Dst, f.v.Masqueraded, f.v.Mark, f.v.Connmark = f.src, f.dst, f.masqueraded, f.mark, f.conn.Mark
	return f.v
}

func (f *flow) pass() Fate {
	if f.in == "" {
		return f.send()
	}
	if !f.hook("mangle", "PREROUTING") || !f.natDst("PREROUTING") {
		return Dropped
	}
	local, out := f.host.Route(f.dst.Addr())
	switch {
	case local:
		return f.receive()
	case out == "":
		return Unrouted
	}
	f.out = out
	if !f.hook("mangle", "FORWARD") || !f.hook("filter", "FORWARD") || !f.hook("mangle", "POSTROUTING") || !f.natSrc("POSTROUTING") {
		return Dropped
	}
	return Forwarded
}

// send is the way of what the host sends. All of OUTPUT sees the interface towards where the packet was for at first:
// the kernel routes anew after NAT, but does not tell the chains that follow on the same hook.
func (f *flow) send() Fate {
	if _, f.out = f.route(); f.out == "" {
		return Unrouted
	}
	f.ours = true
	if !f.hook("mangle", "OUTPUT") || !f.natDst("OUTPUT") || !f.hook("filter", "OUTPUT") {
		return Dropped
	}
	local, out := f.route()
	if f.out = out; out == "" {
		return Unrouted
	}
	if !f.hook("mangle", "POSTROUTING") || !f.natSrc("POSTROUTING") {
		return Dropped
	}
	if !local {
		return Forwarded
	}
	f.in, f.out, f.ours = "lo", "", false // conntrack knows it by now, as NEW still; what nat decides is decided
	if !f.hook("mangle", "PREROUTING") {
		return Dropped
	}
	return f.receive()
}

// route is the way to where the packet goes now, lo for the host's own addresses.
func (f *flow) route() (local bool, out string) {
	if local, out = f.host.Route(f.dst.Addr()); local {
		out = "lo"
	}
	return local, out
}

func (f *flow) receive() Fate {
	if !f.hook("mangle", "INPUT") || !f.hook("filter", "INPUT") || !f.natSrc("INPUT") {
		return Dropped
	}
	return Delivered
}

// natDst rewrites the destination.
func (f *flow) natDst(hook string) bool {
	switch {
	case f.freshDst:
		f.freshDst = false
		if !f.hook("nat", hook) {
			return false
		}
		f.conn.server = f.dst
	case f.conn.State == Untracked || f.conn.State == Invalid:
	case f.conn.reply:
		f.dst = f.conn.client
	default:
		f.dst = f.conn.server
	}
	return true
}

// natSrc rewrites the source.
func (f *flow) natSrc(hook string) bool {
	if f.freshSrc {
		f.freshSrc = false
		if !f.hook("nat", hook) {
			return false
		}
	}
	switch {
	case f.conn.State == Untracked || f.conn.State == Invalid:
	case f.conn.reply:
		f.src = f.conn.asked
	default:
		f.src = f.conn.source
	}
	return true
}

// hook takes the packet through one of the kernel's chains, and reports whether it passes.
func (f *flow) hook(table, name string) bool {
	t := f.family.tables[table]
	c := t.chains[name]
	switch f.through(t, c) {
	case accept:
		return true
	case drop:
		return false
	}
	return c.policy == "ACCEPT"
}

func (f *flow) through(t *table, c *chain) verdict {
	f.v.Path = append(f.v.Path, t.name+"/"+c.name)
	for _, r := range c.rules {
		f.v.Rules++
		if !f.matches(r) {
			continue
		}
		v := goOn
		switch {
		case r.target.chain:
			v = f.through(t, t.chains[r.target.name])
			if r.target.leap && v == goOn {
				return goOn // the end of a chain that was gone to is that of the one that went
			}
		case r.target.act != nil:
			v = r.target.act(f)
		}
		switch v {
		case accept, drop:
			if !r.target.chain {
				f.v.Path = append(f.v.Path, r.text)
			}
			return v
		case back:
			return goOn
		}
	}
	return goOn
}

func (f *flow) matches(r *rule) bool {
	no := func(m match) bool { return !m(f) }
	return !slices.ContainsFunc(r.head, no) && !slices.ContainsFunc(r.matches, no)
}
