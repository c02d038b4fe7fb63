package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"vipd/balancer"
	"vipd/dataplane/guard"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/portmap"
)

// rangesTable names the table with the redirects of port ranges. Each address family has its own.
const rangesTable = "vipd-redirect-ranges"

// rangesPriority makes these rules run after the redirects of single ports, which therefore win. A
// port of a range is redirected even while a frontend of that single port is added or removed.
const rangesPriority = -102

// rangeRedirects describes a table that redirects each packet to the port that the table's map
// holds for the packet's destination.
func rangeRedirects() portmap.Kind {
	chain := func(name string, at nft.Point) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: nft.NAT, Point: at, Priority: rangesPriority}}
	}
	return portmap.Kind{
		Name: rangesTable, Data: nft.Dport, Chains: []nft.Chain{chain("prerouting", nft.Prerouting), chain("output", nft.Output)},
		Rules: func(_ string, number nft.Lookup) (all []nft.Rule) {
			for _, p := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
				all = append(all, guard.RedirectRules(uint32(p.Number()), number)...)
			}
			return all
		},
	}
}

// redirects holds the redirects of a family. ranges is nil if the kernel does not support redirects
// of port ranges.
type redirects struct {
	single *guard.Redirects
	ranges *portmap.Table
}

// newRedirects returns the redirects of a family. It returns an error if a trial shows that
// redirects of single ports do not work.
func newRedirects(family inet.Family) (*redirects, error) {
	single, err := guard.NewRedirects(family)
	if err != nil {
		return nil, err
	}
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("redirecting port ranges: %w", err)
	}
	r := &redirects{single: single, ranges: portmap.New(conn, family, rangeRedirects())}
	if r.ranges.Works() != nil || conn.Listen() != nil {
		r.ranges = nil
		_ = conn.Close() // only the trial used the connection
	}
	return r, nil
}

// Adopt implements redirector.
func (r *redirects) Adopt() {
	r.single.Adopt()
	if r.ranges != nil {
		r.ranges.Adopt()
	}
}

// Set implements redirector.
func (r *redirects) Set(ctx context.Context, ports map[balancer.Key]uint16) error {
	single, ranges := make(map[balancer.Key]uint16, len(ports)), map[balancer.Key]uint32{}
	for k, port := range ports {
		if k.Port.IsRange() {
			ranges[k] = uint32(port)
		} else {
			single[k] = port
		}
	}
	if r.ranges == nil {
		return r.single.Set(ctx, single)
	}
	parts := portmap.Narrowest(ranges)
	for k, port := range parts { // the single port's rule translates even a redirect to the same port
		at := balancer.Key{Addr: k.Addr, Port: balancer.PortRange(port), Proto: k.Proto}
		if _, used := single[at]; !used && k.Port.Contains(uint16(port)) {
			single[at] = uint16(port)
		}
	}
	return errors.Join(r.single.Set(ctx, single), r.ranges.Set(ctx, parts))
}

// Observe implements redirector.
func (r *redirects) Observe(ctx context.Context) (damage string, err error) {
	damage, err = r.single.Observe(ctx)
	if r.ranges == nil {
		return damage, err
	}
	ofRanges, failed := r.ranges.Observe()
	return cmp.Or(damage, ofRanges), errors.Join(err, failed)
}

// Intact implements redirector.
func (r *redirects) Intact() (string, error) {
	damage, err := r.single.Intact()
	if r.ranges == nil || damage != "" || err != nil {
		return damage, err
	}
	return r.ranges.Intact()
}

// Close implements redirector.
func (r *redirects) Close(ctx context.Context) error {
	err := r.single.Close(ctx)
	if r.ranges == nil {
		return err
	}
	return errors.Join(err, r.ranges.Close())
}
