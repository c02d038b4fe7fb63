package owner

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
	"vipd/balancer/lib/sockerr"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/keepalived"
	onhost "vipd/dataplane/failover"
)

// VRRPOptions configures an owner that uses VRRP.
type VRRPOptions struct {
	// Groups returns the groups of the VIPs in a report, sorted, and the errors in all other
	// groups. Interfaces lists the interfaces that are configured for adverts.
	Groups     func(*api.OwnerReport) ([]config.VRRPGroup, []balancer.Problem)
	Interfaces []string
	// ReachTakes reports whether this host takes over from a silent owner only if a host in Reach
	// answers.
	ReachTakes bool
	// Gate is how long the gate stays open after a refresh.
	Gate time.Duration
}

// adverts sends and receives VRRP packets. Its methods are safe for concurrent use.
type adverts interface {
	// Follow sets the interfaces, and opens their sockets.
	Follow(interfaces []string)
	// Failure returns the reason why the interface on has no socket for IPv4, or for IPv6 if v4 is
	// false. It returns nil if the socket exists.
	Failure(on string, v4 bool) error
	// Send sends a packet from one of the host's addresses. It never blocks.
	Send(on string, from, to netip.Addr, data []byte) error
	// Run receives until ctx is done.
	Run(ctx context.Context)
}

// byVRRP is the decider that communicates with other routers on the LAN through VRRP.
type byVRRP struct {
	*vrrp.Node
	core    *core
	adverts adverts

	// Only the loop uses the fields below. report is vipd's last report. links holds the
	// interfaces; the node refers to them by index. cannot holds the reasons why VIPs can't be
	// served here.
	report   *api.OwnerReport
	reported reportedGroups
	layout   onhost.Layout
	links    []advertLink
	cannot   map[netip.Addr]string
	// problems lists the reasons why groups are not on this host.
	problems []string
	// standby reports whether an operator wants this host to own no VIPs.
	standby bool
	// groups lists the node's groups.
	groups    []vrrp.Group
	strangers strangers
	witness   witness
}

// Bound does nothing, because adverts show that this host owns its VIPs.
func (d *byVRRP) Bound(local.Time, []netip.Addr) []local.Action { return nil }

// newByVRRP returns a decider for a core whose gate is closed.
func newByVRRP(c *core) *byVRRP {
	d := &byVRRP{Node: newNode(c.o.VRRP.Gate), core: c, layout: c.layout, report: &api.OwnerReport{}}
	d.witness.takes = c.o.VRRP.ReachTakes
	d.adverts = newAdverts(d.received, c.o.Log)
	d.links = d.find(c.layout, nil) // must come before a group's timer is started
	return d
}

// newNode returns a node without groups.
func newNode(gate time.Duration) *vrrp.Node {
	n := vrrp.New([]vrrp.Group{{Interval: 2 * gate}})
	n.SetGroups(now(), nil)
	return n
}

// find returns the interfaces that the layout and the groups name, and opens their sockets.
// Interfaces in before keep their index. If the addresses can't be listed, the previous addresses
// are used.
func (d *byVRRP) find(l onhost.Layout, before []advertLink) (links []advertLink) {
	all := names(before)
	for _, name := range slices.Concat(l.On, d.core.o.VRRP.Interfaces) {
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	d.adverts.Follow(all)
	down, err := onhost.Down(all)
	if err != nil {
		d.core.o.Log.Warn("the interfaces that VRRP uses can't be read", "err", err)
	}
	routers := keepalived.Here()
	for i, name := range all {
		link := advertLink{name: name, down: down[name]}
		for _, r := range routers {
			if r.Interface == name && r.ID != 0 {
				link.keepalived = append(link.keepalived, r.ID)
			}
		}
		if link.sources, err = advertSources(name, l.VIPs); err != nil && i < len(before) {
			d.core.o.Log.Warn("the source addresses of adverts can't be read", "err", err)
			link.sources = before[i].sources
		}
		link.failure4, link.failure6 = describeFailure(d.adverts.Failure(name, true)), describeFailure(d.adverts.Failure(name, false))
		links = append(links, link)
	}
	return links
}

// listen switches to the interfaces, addresses and sockets of the layout after.
func (d *byVRRP) listen(former, after onhost.Layout) error {
	got := make(chan []advertLink, 1)
	d.core.queueInput(func(local.Time) []local.Action { got <- d.links; return nil })
	var before []advertLink
	select {
	case before = <-got:
	case <-d.core.ended:
		return nil
	}
	links := d.find(after, before)
	same := slices.EqualFunc(links, before, func(a, b advertLink) bool { return a.equal(&b) })
	if !same || !slices.Equal(former.On, after.On) {
		d.core.queueInput(func(now local.Time) []local.Action {
			d.core.layout.On = after.On
			d.links = links
			return d.apply(now)
		})
	}
	return nil
}

// SetReport replaces the groups' VIPs.
func (d *byVRRP) SetReport(now local.Time, report *api.OwnerReport, l onhost.Layout) []local.Action {
	d.report, d.layout = report, l
	return append(d.setStandby(now, report.Standby), d.apply(now)...)
}

func (d *byVRRP) can(cannot map[netip.Addr]string, _ []netip.Addr) {
	d.core.queueInput(func(now local.Time) []local.Action {
		d.cannot = cannot
		return d.apply(now)
	})
}

// apply tells the node which groups can be on this host, and whether the host can serve them.
func (d *byVRRP) apply(now local.Time) (actions []local.Action) {
	before := d.problems
	all, unfit := d.reported.follow(d.report, d.core.o.VRRP.Groups)
	for _, group := range d.witness.follow(d.layout, all) {
		actions = append(actions, d.Node.Reaching(now, group)...)
	}
	d.problems = append(d.witness.problems(), unfit...)
	for _, text := range unfit {
		if !slices.Contains(before, text) {
			actions = append(actions, local.Note{Kind: local.NoteRefused, Text: text})
		}
	}
	var groups []vrrp.Group
	for _, c := range all {
		g, why := d.group(&c)
		if why == "" {
			why = d.taken(groups, &g)
		}
		if why == "" {
			groups = append(groups, g)
			continue
		}
		text := fmt.Sprintf("%s is not on this host: %s", c.Name, why)
		if d.problems = append(d.problems, text); !slices.Contains(before, text) {
			actions = append(actions, local.Note{Kind: local.NoteRefused, Text: text})
		}
	}
	d.groups = groups
	actions = append(actions, d.SetGroups(now, groups)...)
	for _, g := range groups {
		actions = append(actions, d.Ready(now, g.Name, d.lacks(g.VIPs))...)
	}
	return actions
}

// taken returns the reason why a group can't use its router ID on its interface, or "". A group
// that is already on this host stays. A keepalived that starts later only causes a problem.
func (d *byVRRP) taken(before []vrrp.Group, g *vrrp.Group) string {
	link := &d.links[g.Link.On]
	for _, o := range before { // the adverts of the two groups could not be distinguished
		if o.RouterID == g.RouterID && o.Link.On == g.Link.On && o.Link.Source.Is4() == g.Link.Source.Is4() {
			return fmt.Sprintf("router_id %d is the ID of %s on interface %s: choose another ID", g.RouterID, o.Name, link.name)
		}
	}
	if !slices.Contains(link.keepalived, int(g.RouterID)) {
		return ""
	}
	why := fmt.Sprintf("keepalived also has router_id %d on interface %s of this host: systemctl disable --now keepalived, or choose another ID", g.RouterID, link.name)
	if slices.ContainsFunc(d.groups, func(o vrrp.Group) bool { return o.Name == g.Name }) {
		d.problems = append(d.problems, g.Name+": "+why)
		return ""
	}
	return why
}

// lacks returns the reason why this host can't serve one of these VIPs, or "".
func (d *byVRRP) lacks(vips []netip.Addr) string {
	for _, a := range vips {
		unplaced := ""
		if d.layout.Devices[a] == "" && !slices.Contains(d.layout.Own, a) {
			unplaced = "it is not in the network of any interface: add an address from the same network to an interface"
		}
		switch why := cmp.Or(d.layout.Away[a], d.cannot[a], unplaced); {
		case why != "" && len(vips) > 1:
			return fmt.Sprintf("%s: %s", a, why)
		case why != "":
			return why
		}
	}
	return ""
}

// group converts a configured group for the node, or returns the reason why the group can't be on
// this host.
func (d *byVRRP) group(c *config.VRRPGroup) (g vrrp.Group, why string) {
	name := c.Interface
	if name == "" {
		name = d.layout.Devices[c.VIPs[0]]
	}
	on := slices.IndexFunc(d.links, func(l advertLink) bool { return l.name == name })
	switch own := slices.IndexFunc(c.VIPs, func(a netip.Addr) bool { return slices.Contains(d.layout.Own, a) }); {
	case own >= 0:
		return g, fmt.Sprintf("%s is this host's own address: remove it from the interface", c.VIPs[own])
	case on < 0 && c.Interface == "":
		return g, fmt.Sprintf("%s is not in the network of any interface: add an address from the same network to an interface", c.VIPs[0])
	case on < 0:
		return g, "interface " + name + " is missing"
	}
	source, why := d.links[on].source(c)
	if why != "" {
		return g, why
	}
	if slices.Contains(c.Peers, source) {
		return g, fmt.Sprintf("peers contains %s, this host's own address: list only the other hosts", source)
	}
	return vrrp.Group{
		Name: c.Name, RouterID: uint8(c.RouterID), Priority: uint8(c.Priority), Version: c.Version, Interval: c.AdvertInterval,
		DownAdverts: c.DownAdverts, Preempt: time.Duration(c.Preempt), Advertise: c.Advertise, VIPs: c.VIPs, Password: c.Password,
		Checksum: checksumOf(c.Checksum), Unyielding: !c.Yield, Witness: d.witness.of(c),
		Link: vrrp.Link{On: on, Source: source, Peers: c.Peers, MinTTL: c.UnicastTTL},
	}, ""
}

func checksumOf(c config.VRRPChecksum) vrrp.Checksum {
	switch c {
	case config.PlainChecksum:
		return vrrp.Plain
	case config.PseudoChecksum:
		return vrrp.Pseudo
	}
	return ""
}

// index returns the node's index of an interface, or -1 if the interface is unknown.
func (d *byVRRP) index(name string) int {
	return slices.IndexFunc(d.links, func(l advertLink) bool { return l.name == name })
}

// Reached tells the node that a host that must be within reach has answered.
func (d *byVRRP) Reached(now local.Time, on int) (actions []local.Action) {
	for _, group := range d.witness.groups[d.core.layout.On[on]] {
		actions = append(actions, d.Node.Reached(now, group)...)
	}
	return actions
}

// Reaching does nothing, because SetReport updates the hosts that must be within reach.
func (d *byVRRP) Reaching(local.Time, int) []local.Action { return nil }

// received passes a packet to the node. It uses the kernel's timestamp, because the packet may have
// been queued while the process was stopped.
func (d *byVRRP) received(a onhost.Advert) {
	at := now().Add(-max(time.Since(a.At), 0))
	d.core.queueInput(func(now local.Time) []local.Action {
		notes := d.strangers.receive(now, &a, d.groups)
		return append(notes, d.Received(now, vrrp.Datagram{On: d.index(a.On), From: a.From, To: a.To, TTL: a.TTL, At: at, Data: a.Data})...)
	})
}

// Do sends an advert. The Kernel sends requests to hosts that must be within reach.
func (d *byVRRP) Do(_ context.Context, a local.Action) input {
	s, is := a.(vrrp.Send)
	if !is {
		return nil
	}
	at := now()
	var err error
	left := false
	for _, p := range s.Packets {
		failed := d.adverts.Send(d.links[s.On].name, s.Source, p.To, p.Data)
		if sockerr.Is(failed, syscall.EPERM) {
			failed = fmt.Errorf("%w: allow IP protocol 112 in the firewall", failed)
		}
		left = left || failed == nil || sockerr.Is(failed, syscall.EHOSTUNREACH) // EHOSTUNREACH means that a peer is down
		if err == nil {
			err = failed
		}
	}
	if left {
		err = nil
	}
	return func(now local.Time) []local.Action { return d.Sent(now, s, at, err) }
}

func (d *byVRRP) run(ctx context.Context) { d.adverts.Run(ctx) }

func (d *byVRRP) describe(s *api.OwnerStatus) {
	got := make(chan vrrp.Status, 1)
	d.core.queueInput(func(now local.Time) []local.Action {
		s.Unplaced = d.core.layout.Unplaced()
		problems, ids := d.strangers.list(now, d.groups)
		s.Problems, s.RouterIDs = slices.Concat(s.Problems, d.problems, d.witness.silent(d.Unwitnessed(now)), problems), ids
		got <- d.Status(now)
		return nil
	})
	select {
	case n := <-got:
		s.Gate, s.VRRP = n.Gate, &n
		for _, g := range n.Groups {
			s.Bound = append(s.Bound, g.Bound...)
			s.Problems = append(s.Problems, g.Problems...)
		}
		slices.SortFunc(s.Bound, netip.Addr.Compare)
	case <-d.core.ended:
	}
}
