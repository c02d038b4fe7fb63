package duplicates

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/vipd/daemon/internal/model"
)

// Options connects a Watch to the host.
type Options struct {
	// State returns the last compiled state, and a channel that is closed when the next state is
	// published.
	State func() (*model.State, <-chan struct{})
	// Interfaces lists the devices of the host.
	Interfaces func() ([]doctor.Interface, error)
	// Neighbours lists the hosts in the kernel's neighbor tables, with their devices.
	Neighbours func() (map[netip.Addr]string, error)
	// Elsewhere probes the link of a device for other hosts that have one of the VIPs, and returns
	// their MAC addresses.
	Elsewhere func(ctx context.Context, device string, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error)
	// Again is the interval at which links are probed again for VIPs that another host has. The
	// default is 30 s.
	Again time.Duration
}

// patience limits how long all probes of a round may take.
const patience = time.Second

// place is a VIP on a link.
type place struct {
	vip    netip.Addr
	device string
}

// Watch finds VIPs that another host has. The goroutine of Run owns all fields except problems.
type Watch struct {
	o        Options
	problems atomic.Pointer[[]balancer.Problem]
	asked    map[place]bool
	found    map[place]net.HardwareAddr
}

// New returns a Watch that has found nothing yet.
func New(o Options) *Watch {
	if o.Again == 0 {
		o.Again = 30 * time.Second
	}
	w := &Watch{o: o, asked: map[place]bool{}, found: map[place]net.HardwareAddr{}}
	w.problems.Store(&[]balancer.Problem{})
	return w
}

// Problems returns a problem for each VIP that another host has. The caller must not change the
// result.
func (w *Watch) Problems() []balancer.Problem {
	if w == nil {
		return nil
	}
	return *w.problems.Load()
}

// Run probes for new VIPs until ctx is done.
func (w *Watch) Run(ctx context.Context) error {
	again := time.NewTicker(w.o.Again)
	defer again.Stop()
	var last *model.State
	for {
		s, changed := w.o.State()
		if s.Complete && (last == nil || concerns(last, s)) {
			last = s
			now := vips(s)
			maps.DeleteFunc(w.asked, func(p place, _ bool) bool { return !now[p.vip] })
			maps.DeleteFunc(w.found, func(p place, _ net.HardwareAddr) bool { return !now[p.vip] })
			w.ask(ctx, w.fresh(s, now))
			w.publish(s)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again.C:
			if len(w.found) > 0 {
				w.ask(ctx, slices.Collect(maps.Keys(w.found)))
				w.publish(s)
			}
		}
	}
}

// concerns reports whether the change between two states may affect VIPs or links.
func concerns(before, s *model.State) bool {
	return s.Desired.Addresses != before.Desired.Addresses || s.Inputs.VIPs != before.Inputs.VIPs || s.Inputs.Pools != before.Inputs.Pools ||
		!slices.Equal(s.Env.Local, before.Env.Local)
}

// vips returns the VIPs that vipd itself holds on this host, or is about to hold. It omits VIPs
// with one owner.
func vips(s *model.State) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	if s.Env.ExternalVIPs {
		return all
	}
	for a, frontends := range s.Desired.Addresses.All() {
		if _, own := slices.BinarySearchFunc(s.Env.Local, a, netip.Addr.Compare); frontends > 0 && !own && !a.IsLoopback() && s.Inputs.PolicyOf(a).Hold != balancer.HoldOne {
			all[a] = true
		}
	}
	return all
}

// fresh returns the VIPs that were not probed yet, each with the links to probe. A link matters if
// it leads to a network that contains the VIP, if a neighbor on it has the VIP's address, or if
// addresses.interface names it and it is neither lo nor vipd's own device.
func (w *Watch) fresh(s *model.State, vips map[netip.Addr]bool) (all []place) {
	interfaces, err := w.o.Interfaces()
	if err != nil || len(vips) == 0 {
		return nil
	}
	neighbours, _ := w.o.Neighbours() // if this fails, only networks determine the links
	add := func(vip netip.Addr, device string) {
		if p := (place{vip, device}); !w.asked[p] {
			w.asked[p] = true
			all = append(all, p)
		}
	}
	holder := s.Config.Addresses.Interface
	for vip := range vips {
		if device := neighbours[vip]; device != "" {
			add(vip, device)
		}
		for _, i := range interfaces {
			holds := i.Name == holder && !strings.HasPrefix(holder, "vipd") && holder != "lo"
			if holds || slices.ContainsFunc(i.Networks, func(n netip.Prefix) bool { return n.Contains(vip) }) {
				add(vip, i.Name)
			}
		}
	}
	return all
}

// ask probes all places at the same time, and records the answers. If a link can't be probed, for
// example for lack of a privilege, the answers of the previous round remain.
func (w *Watch) ask(ctx context.Context, places []place) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	on := map[string][]netip.Addr{}
	for _, p := range places {
		on[p.device] = append(on[p.device], p.vip)
	}
	var mu sync.Mutex // guards w.found
	var asking sync.WaitGroup
	for device, vips := range on {
		asking.Go(func() {
			found, err := w.o.Elsewhere(ctx, device, vips)
			mu.Lock()
			defer mu.Unlock()
			for _, vip := range vips {
				if mac, ok := found[vip]; ok {
					w.found[place{vip, device}] = mac
				} else if err == nil {
					delete(w.found, place{vip, device})
				}
			}
		})
	}
	asking.Wait()
}

// publish turns the findings into problems.
func (w *Watch) publish(s *model.State) {
	problems := []balancer.Problem{}
	for p, mac := range w.found {
		problem := balancer.Problem{Severity: balancer.SeverityWarning, Field: "vips", Text: fmt.Sprintf(
			"another host (%s) has the address %s on %s. This host can't reach it, and clients on %s might reach either host. Use another VIP, or remove the address from the other host",
			mac, p.vip, p.device, p.device)}
		for _, f := range balancer.FrontendsOn(s.Desired.Frontends, p.vip) {
			problem.Service = f.Service
			break
		}
		problems = append(problems, problem)
	}
	slices.SortFunc(problems, func(a, b balancer.Problem) int { return strings.Compare(a.Text, b.Text) })
	w.problems.Store(&problems)
}
