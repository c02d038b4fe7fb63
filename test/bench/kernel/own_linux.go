package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	hostside "vipd/dataplane/host"
	"vipd/dataplane/iptables"
	"vipd/dataplane/ipvs"
	"vipd/dataplane/nftables"
	"vipd/test/fake"
)

// own runs iptables, nftables or ipvs mode as the daemon does: it compiles services, and an engine
// applies them. It measures the time from the engine's Set until the state is applied.
type own struct {
	backend   backend
	spec      spec
	vips      []netip.Addr // VIPs of the loaded services, and of services to add
	dataplane dataplane.Dataplane
	host      dataplane.Host
	engine    *dataplane.Engine
	cancel    context.CancelFunc
	running   sync.WaitGroup

	env      balancer.Env
	compiler balancer.Compiler
	services snap.Map[balancer.Name, *balancer.Service]
	revision int64
}

// newOwn creates the dataplane of a mode. Its Host is real, unless the layout has only the mode's
// own rules.
func newOwn(b backend, s spec) (*own, error) {
	o := &own{backend: b, spec: s, vips: vips(s.Services + spareServices), cancel: func() {}}
	if err := o.start(); err != nil {
		return nil, err
	}
	o.env.Capabilities = o.dataplane.Capabilities()
	return o, nil
}

// start creates the dataplane, its Host and the engine, as the daemon does.
func (o *own) start() error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	options := hostside.DefaultOptions()
	options.Variant, options.Log = hostside.Variant(o.backend), log
	var d dataplane.Dataplane
	var err error
	switch o.spec.Layout {
	case ipvsLayout, ipvsDirectLayout:
		options.Mode = ipvs.Needs()
		d, err = ipvs.New(context.Background(), ipvs.Options{Log: log, RunDir: options.RunDir})
	case mapsLayout, mapsCompleteLayout, affinityLayout, rangesLayout, clampLayout, directLayout, fastLayout:
		options.Interface = "lo" // some kernels lack dummy devices
		options.Mode, options.ClampMSS = nftables.Needs(), o.spec.Layout == clampLayout
		if o.spec.Layout == fastLayout {
			options.FastPath = []string{inLink, outLink}
		}
		d, err = nftables.New(nftables.Options{Log: log, Mark: guard.MarkBits(options.MasqueradeBit)})
	default:
		options.Interface = "lo"
		options.Mode = iptables.Needs()
		mode := iptables.Options{Log: log, Variant: options.Variant}
		if o.spec.Layout == completeLayout {
			mode.Mark = guard.Mark(options.MasqueradeBit)
		}
		d, err = iptables.New(context.Background(), mode)
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", o.spec.Layout, err)
	}
	o.dataplane, o.host = d, fake.NoHost{}
	if o.spec.Layout != natLayout && o.spec.Layout != mapsLayout {
		if o.host, err = hostside.New(options); err != nil {
			return fmt.Errorf("starting the host's side: %w", err)
		}
	}
	o.engine = dataplane.NewEngine(dataplane.Options{Dataplane: o.dataplane, Host: o.host, Log: log})
	return nil
}

// load starts the engine with all services.
func (o *own) load(ctx context.Context) (time.Duration, error) {
	for i := range o.spec.Services {
		o.add(i)
	}
	running, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	o.running.Go(func() { _ = o.engine.Run(running) }) // Run returns nil by contract
	return o.publish(ctx)
}

// add defines the i-th service. Fields have their defaults, except fields that the layout sets.
func (o *own) add(i int) {
	s := &balancer.Service{
		Name: balancer.Name(serviceName(i)), VIPs: o.vips[i : i+1],
		Ports:  []balancer.Port{{Port: servicePort, Protocol: balancer.TCP, TargetPort: targetPort}},
		Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, SNAT: balancer.AutoSNAT, Forward: balancer.NATForward, NoEndpoints: balancer.RejectClients, DrainTimeout: 30 * time.Second, ConnectTimeout: time.Second, ProxyProtocol: balancer.NoProxyProtocol}, Affinity: balancer.NoAffinity, AffinityTimeout: 3 * time.Hour,
		Locality: balancer.AnyLocality,
	}
	if o.spec.Through == established {
		s.Ports[0].Protocol = balancer.UDP
	}
	switch o.spec.Layout {
	case directLayout, ipvsDirectLayout:
		s.Forward, s.Ports[0].TargetPort = balancer.DRForward, servicePort
	case affinityLayout:
		s.Affinity = balancer.ClientIPAffinity
	case rangesLayout:
		s.SourceRanges = []netip.Prefix{network(clientBase, clientBits), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("198.51.100.0/24")}
	}
	for j := range o.spec.Endpoints {
		s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: endpoint(i*o.spec.Endpoints + j), Weight: 1})
	}
	o.services = o.services.Set(s.Name, s)
}

// publish compiles the services, passes them to the engine, and waits until they are applied.
func (o *own) publish(ctx context.Context) (time.Duration, error) {
	now := time.Now()
	compiled := o.compiler.Next(o.env, balancer.Inputs{Services: o.services}, now)
	o.revision++
	compiled.Revision = balancer.Revision{Store: o.revision, Seen: now}
	began := time.Now()
	o.engine.Set(compiled)
	return o.wait(ctx, began)
}

// patience is the maximum duration of a load, even in an emulated kernel.
const patience = 15 * time.Minute

// wait returns the time from began until the newest revision was applied.
func (o *own) wait(ctx context.Context, began time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		changed := o.engine.Changed()
		s := o.engine.Status()
		switch {
		case s.LastError != "":
			return 0, errors.New(s.LastError)
		case s.Ready && s.Applied.Store >= o.revision:
			return time.Since(began), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for revision %d: %w", o.revision, ctx.Err())
		}
	}
}

// rest is longer than the engine's pause between changes, so a measured change starts at once.
const rest = 200 * time.Millisecond

func (o *own) change(ctx context.Context, kind measure, n int) (time.Duration, error) {
	time.Sleep(rest) // this pause is not measured
	switch kind {
	case endpointChanged:
		name := balancer.Name(serviceName(o.spec.Services/2 + n))
		s := *o.services.At(name)
		s.Endpoints = slices.Clone(s.Endpoints)
		s.Endpoints[0].Address = endpoint(changedEndpoints + n)
		o.services = o.services.Set(name, &s)
	case serviceAdded:
		o.add(o.spec.Services + n)
	default:
		o.services = o.services.Delete(balancer.Name(serviceName(o.spec.Services + n)))
	}
	return o.publish(ctx)
}

// stop stops the engine, and leaves the applied state in place.
func (o *own) stop() {
	o.cancel()
	o.running.Wait()
}
