package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// Explain implements [dataplane.Explains]. It reads the virtual server, its destinations, and the
// client's persistence template.
func (d *Dataplane) Explain(ctx context.Context, f *balancer.Frontend, from netip.AddrPort) (dataplane.Explanation, error) {
	client := from.Addr()
	var e dataplane.Explanation
	virtual, err := d.conn.Service(ctx, f.Key)
	name := "virtual server " + f.Key.String()
	if f.Key.Port.IsRange() {
		name += fmt.Sprintf(" (firewall mark 0x%08x)", ipvsnl.Mark(f.Key))
	}
	if errors.Is(err, ipvsnl.ErrNoService) {
		e.Objects = []dataplane.Object{{Name: name, Missing: f.Serves()}}
		return e, nil
	}
	if err != nil {
		return e, err
	}
	destinations, err := d.conn.Destinations(ctx, f.Key)
	if err != nil {
		return e, err
	}
	slices.SortFunc(destinations, func(a, b ipvsnl.DestinationState) int { return a.Addr.Compare(b.Addr) })
	e.Objects = []dataplane.Object{dataplane.Object{Name: name, Says: "scheduler " + virtual.Scheduler}.Counted(virtual.InPackets)}
	for _, x := range destinations {
		e.Objects = append(e.Objects, dataplane.Object{
			Name: "destination " + x.Addr.String(), Says: fmt.Sprintf("weight %d, %d active, %d inactive connections", x.Weight, x.Active, x.Inactive),
		}.Counted(x.InPackets))
	}
	e.Choice, e.Shares = shares(virtual.Scheduler, destinations)
	if virtual.Flags&ipvsnl.Persistent == 0 {
		return e, nil
	}
	if f.Key.Port.IsRange() {
		e.Choice += "; the client's persistence entry is not read for port ranges"
		return e, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxTemplateSearch)
	defer cancel()
	err = d.findTemplate(ctx, f, client, &e)
	if errors.Is(err, context.DeadlineExceeded) {
		e.Choice += fmt.Sprintf("; the client's persistence entry was not found within %s", maxTemplateSearch)
		err = nil
	}
	return e, err
}

// maxTemplateSearch limits how long the search for the client's template may take.
const maxTemplateSearch = 3 * time.Second

// shares describes how the kernel's scheduler chooses, and returns each destination's share of new
// connections. The kernel's hashes can't be computed here, so a scheduler that uses a hash may
// choose any destination.
func shares(scheduler string, destinations []ipvsnl.DestinationState) (choice string, all []dataplane.Share) {
	as, choice := balancer.WeightedRoundRobin, "in turn, by weight"
	backends := make([]balancer.Backend, len(destinations))
	for i, x := range destinations {
		backends[i] = balancer.Backend{Addr: x.Addr, State: balancer.Active, Weight: x.Weight}
	}
	switch s := balancer.Scheduler(scheduler); s {
	case balancer.RoundRobin:
		as, choice = s, "in turn"
	case balancer.LeastConn, balancer.WeightedLeastConn, balancer.ShortestDelay, balancer.NeverQueue:
		as, choice = s, "by this node's current connections"
	case balancer.SourceHash, balancer.Maglev:
		choice = "by the kernel's hash of the client's address; the shares apply to all clients together"
	case balancer.DestinationHash, failover:
		as, choice = balancer.RoundRobin, "by the kernel's hash of the VIP; the shares apply to all VIPs together"
	}
	load := func(i int) int64 { return int64(destinations[i].Active) + int64(destinations[i].Inactive) }
	full := func(i int) bool { return destinations[i].Upper > 0 && load(i) >= int64(destinations[i].Upper) }
	for i, part := range pick.Shares(as, backends, load, pick.Flow{}, full) {
		if part > 0 {
			all = append(all, dataplane.Share{Backend: backends[i].Addr, Part: part})
		}
	}
	return choice, all
}

// findTemplate searches for the client's persistence template. A destination of weight 0 gets no
// new connections despite a template (net.ipv4.vs.expire_quiescent_template).
func (d *Dataplane) findTemplate(ctx context.Context, f *balancer.Frontend, client netip.Addr, e *dataplane.Explanation) error {
	k, group := f.Key, f.AffinityClient(client)
	for c, err := range d.conn.Connections(ctx) {
		if err != nil {
			return err
		}
		if c.Template && c.Proto == k.Proto && c.Frontend == k.AddrPort() && c.Client.Addr() == group && e.Probability(c.Backend) > 0 {
			e.Sticky, e.Left = c.Backend, c.Expires
			return nil
		}
	}
	return nil
}
