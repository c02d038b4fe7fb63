package failover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/lib/wake"
)

// Kernel is gate, addresses and announcements as one: what the process that owns VIPs asks of its host. All but Refresh and Run
// are for one goroutine.
type Kernel struct {
	o         KernelOptions
	gate      *Gate
	addresses *Addresses
	announcer *Announcer
	// left are VIPs that an earlier process may have left here. The first Close removes them.
	left []netip.Addr

	places atomic.Pointer[Places] // o.Places, for Probe and Run
	moved  wake.Signal            // places are others
	token  sync.Mutex             // of the gate: while it is exchanged nothing is refreshed
}

// NewKernel opens what it needs, and says why where this kernel can't fence VIPs. Nothing is changed before Close, which comes first.
func NewKernel(o KernelOptions) (*Kernel, error) {
	if err := Trial(); err != nil {
		return nil, err
	}
	g, err := NewGate(GateOptions{Timeout: o.Gate})
	if err != nil {
		return nil, err
	}
	x, err := NewAddresses()
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	left, err := g.listed()
	if err != nil {
		return nil, errors.Join(err, g.Close(), x.Close())
	}
	k := &Kernel{o: o, gate: g, addresses: x, announcer: NewAnnouncer(o.AnnounceEvery, o.Log), left: append(left, o.VIPs...), moved: wake.New()}
	k.know(o.Places)
	return k, nil
}

// know takes in where VIPs may be. What is given must not change.
func (k *Kernel) know(p Places) {
	k.o.Places = p
	k.places.Store(&p)
	k.moved.Send()
}

// Run announces what is bound, and listens for other hosts that say they have it, until ctx ends.
func (k *Kernel) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { k.announcer.Run(ctx) })
	running.Go(func() { k.watch(ctx) })
	listening := map[string]listener{}
	for ctx.Err() == nil {
		p := *k.places.Load()
		for name, l := range listening {
			if !slices.Contains(p.Interfaces, name) || !slices.Equal(l.hosts, p.Reach[name]) {
				l.stop()
				delete(listening, name)
			}
		}
		for _, name := range p.Interfaces {
			if listening[name].stop == nil {
				on, stop := context.WithCancel(ctx)
				listening[name] = listener{stop, p.Reach[name]}
				running.Go(func() { k.hear(on, name, p.Reach[name]) })
			}
		}
		select {
		case <-ctx.Done():
		case <-k.moved:
		}
	}
	for _, l := range listening {
		l.stop()
	}
	running.Wait()
}

// listener listens on an interface, for hosts that are to be within reach among others.
type listener struct {
	stop  context.CancelFunc
	hosts []netip.Addr
}

// hear listens on an interface for other hosts with VIPs, and for the hosts that are to answer there, until ctx ends.
func (k *Kernel) hear(ctx context.Context, name string, hosts []netip.Addr) {
	var listening sync.WaitGroup
	listening.Go(func() {
		k.listen(ctx, name, "listening for other hosts with VIPs", func(device int) error {
			return Rivals(ctx, device, k.announcer.Defend, k.o.Rival)
		})
	})
	if len(hosts) > 0 {
		listening.Go(func() {
			k.listen(ctx, name, "asking for hosts that are to be within reach", func(device int) error {
				return Reach(ctx, device, hosts, reaching, func() { k.o.Reached(name, hosts) })
			})
		})
	}
	listening.Wait()
}

// reaching is the time between two questions to hosts that are to be within reach.
const reaching = 100 * time.Millisecond

// listen does something on an interface until ctx ends. Where it can't, for the interface is away, it tries again.
func (k *Kernel) listen(ctx context.Context, name, what string, do func(device int) error) {
	for ctx.Err() == nil {
		device, err := net.InterfaceByName(name)
		if err == nil {
			err = do(device.Index)
		}
		if err != nil {
			k.o.Log.Debug(what, "interface", name, "err", err)
		}
		wake.Sleep(ctx, time.Second)
	}
}

// Probe asks whether another host has VIPs, which must not be here, and returns the MACs of those that do. Any goroutine may call it.
func (k *Kernel) Probe(ctx context.Context, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error) {
	found := map[netip.Addr]net.HardwareAddr{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	var all []error
	for name, vips := range byDevice(k.places.Load().Devices, vips) {
		asking.Go(func() {
			device, err := net.InterfaceByName(name)
			var some map[netip.Addr]net.HardwareAddr
			if err == nil {
				some, err = Probe(ctx, device.Index, vips, probing)
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(found, some)
			all = append(all, err)
		})
	}
	asking.Wait()
	return found, errors.Join(all...)
}

// probing is how long hosts have to answer Probe. RFC 5227 would wait for seconds, for links that are slow.
const probing = 300 * time.Millisecond

func byDevice(devices map[netip.Addr]string, vips []netip.Addr) map[string][]netip.Addr {
	of := map[string][]netip.Addr{}
	for _, a := range vips {
		of[devices[a]] = append(of[devices[a]], a)
	}
	return of
}

func (k *Kernel) vips() []netip.Addr {
	return slices.SortedFunc(maps.Keys(k.o.Devices), netip.Addr.Compare)
}

// Close closes the gate so that no refresh opens it, by making it anew, and then removes every VIP, also one that another program added.
func (k *Kernel) Close() error {
	if err := k.strip(k.left); err != nil { // first, as the next table does not list them
		return err
	}
	k.left = nil
	k.token.Lock()
	err := k.gate.Install(k.present(), k.vips())
	k.token.Unlock()
	if err != nil {
		return err
	}
	k.announcer.Forget(k.vips())
	own, err := k.addresses.Strip(k.vips())
	if len(own) > 0 {
		k.o.Log.Error("VIPs have become this host's own addresses, and can't move: give the host others", "addresses", own)
	}
	return err
}

// Cover changes the VIPs, and the interfaces where they may be. What is bound is among them. VIPs that come are removed from this host,
// as the gate may be open and another host may own them. So are those that get another interface: they are Lost then, if they were bound.
func (k *Kernel) Cover(p Places) error {
	before := k.o.Devices
	k.know(p)
	if err := k.follow(); err != nil {
		return err
	}
	if err := k.strip(slices.DeleteFunc(k.vips(), func(a netip.Addr) bool { return k.gate.vips[a] && before[a] == p.Devices[a] })); err != nil {
		return err
	}
	return k.gate.Cover(k.vips())
}

// follow has the gate stand on the interfaces that there are.
func (k *Kernel) follow() error {
	present := k.present()
	if slices.Equal(present, k.gate.devices) {
		return nil
	}
	var away []netip.Addr
	for a, device := range k.o.Devices {
		if !slices.Contains(present, device) {
			away = append(away, a)
		}
	}
	if err := k.strip(away); err != nil { // an interface that has another name now has them still
		return err
	}
	return k.gate.Follow(present)
}

// present are the interfaces that there are.
func (k *Kernel) present() (names []string) {
	for _, name := range k.o.Interfaces {
		if _, err := net.InterfaceByName(name); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// Open opens the gate, for its timeout.
func (k *Kernel) Open() error { return k.gate.Open() }

// Refresh keeps an open gate open, and leaves a closed one as it is. It never waits. What is lost of it closes the gate, which
// is found by that.
func (k *Kernel) Refresh() {
	if k.token.TryLock() {
		_ = k.gate.Refresh() // one that is lost is one of eight
		k.token.Unlock()
	}
}

// Intact looks whether the gate stands; the reason says what is missing. Where it does not, Close makes it anew. With an interface the
// gate comes and goes.
func (k *Kernel) Intact() (reason string, err error) {
	if err := k.follow(); err != nil {
		return "", err
	}
	return k.gate.Intact()
}

// Bind adds addresses, and announces them until they are unbound. There is none where the gate does not stand. It returns why, for
// each that could not be added, which is announced no more.
func (k *Kernel) Bind(vips []netip.Addr) map[netip.Addr]error {
	failed := map[netip.Addr]error{}
	for name, vips := range byDevice(k.o.Devices, vips) {
		device, err := net.InterfaceByName(name)
		if err == nil && !slices.Contains(k.gate.devices, name) {
			err = k.follow() // it has just come
		}
		if err == nil && !slices.Contains(k.gate.devices, name) {
			err = errors.New("the gate does not stand there")
		}
		if err != nil {
			for _, a := range vips {
				failed[a] = fmt.Errorf("looking at interface %q: %w", name, err)
			}
			continue
		}
		var there []netip.Addr
		for i, err := range k.addresses.Add(device.Index, vips) {
			if err == nil {
				there = append(there, vips[i])
			} else {
				failed[vips[i]] = err
			}
		}
		k.announcer.Announce(device.Index, there)
	}
	k.announcer.Forget(slices.Collect(maps.Keys(failed)))
	return failed
}

// Unbind takes addresses away. Those of an interface that is gone are looked for on all others: it may have another name now.
func (k *Kernel) Unbind(vips []netip.Addr) error {
	k.announcer.Forget(vips)
	var all []error
	for name, vips := range byDevice(k.o.Devices, vips) {
		if device, err := net.InterfaceByName(name); err == nil {
			all = append(all, k.addresses.Remove(device.Index, vips)...)
		} else {
			all = append(all, k.strip(vips))
		}
	}
	return errors.Join(all...)
}

// strip takes VIPs from every interface.
func (k *Kernel) strip(vips []netip.Addr) error {
	if len(vips) == 0 {
		return nil
	}
	_, err := k.addresses.Strip(vips)
	return err
}

// End closes what NewKernel opened. A closed gate stays: rules of NAT for the VIPs stand on this host, and would take what a client
// still sends here. Cleanup takes it away.
func (k *Kernel) End() error { return errors.Join(k.gate.Close(), k.addresses.Close()) }

// Announced is how many addresses were announced, each time counted.
func (k *Kernel) Announced() uint64 { return k.announcer.Sent() }
