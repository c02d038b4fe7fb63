package ownership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// KernelOptions say what a Kernel holds.
type KernelOptions struct {
	Gate GateOptions
	// Interfaces are those that may have VIPs, and Devices names the one of each VIP that this host may own.
	Interfaces []string
	Devices    map[netip.Addr]string
	// AnnounceEvery repeats announcements; 0 means they follow changes alone.
	AnnounceEvery time.Duration
	// Rival is told, at most once a second for each VIP, that another host says it has a VIP that is here. It must not block.
	Rival func(Rival)
	// Reach are hosts that are to answer on an interface; Reached is told the interface when one does, and must not block.
	Reach   map[string][]netip.Addr
	Reached func(string)
	Log     *slog.Logger
}

// Kernel is gate, addresses and announcements as one: what the process that owns VIPs asks of its host. All but Refresh and Run
// are for one goroutine.
type Kernel struct {
	o         KernelOptions
	gate      *Gate
	addresses *Addresses
	announcer *Announcer

	places atomic.Pointer[map[netip.Addr]string] // o.Devices, for Probe
	token  sync.Mutex                            // of the gate: while it is exchanged nothing is refreshed
}

// NewKernel opens what it needs, and says why where this kernel can't fence VIPs. Nothing is changed before Close, which comes first.
func NewKernel(o KernelOptions) (*Kernel, error) {
	if err := Trial(); err != nil {
		return nil, err
	}
	g, err := NewGate(o.Gate)
	if err != nil {
		return nil, err
	}
	x, err := NewAddresses()
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	k := &Kernel{o: o, gate: g, addresses: x, announcer: NewAnnouncer(o.AnnounceEvery, o.Log)}
	k.know(o.Devices)
	return k, nil
}

// know takes in which VIPs there are.
func (k *Kernel) know(devices map[netip.Addr]string) {
	k.o.Devices = maps.Clone(devices)
	shared := k.o.Devices // which nobody changes
	k.places.Store(&shared)
}

// Run announces what is bound, and listens for other hosts that say they have it, until ctx ends.
func (k *Kernel) Run(ctx context.Context) {
	var listening sync.WaitGroup
	for _, name := range k.o.Interfaces {
		listening.Go(func() {
			k.listen(ctx, name, "listening for other hosts with VIPs", func(device int) error {
				return Rivals(ctx, device, k.announcer.Defend, k.o.Rival)
			})
		})
	}
	for name, hosts := range k.o.Reach {
		listening.Go(func() {
			k.listen(ctx, name, "asking for hosts that are to be within reach", func(device int) error {
				return Reach(ctx, device, hosts, reaching, func() { k.o.Reached(name) })
			})
		})
	}
	k.announcer.Run(ctx)
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
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// Probe asks whether another host has VIPs, which must not be here, and returns the MACs of those that do. Any goroutine may call it.
func (k *Kernel) Probe(ctx context.Context, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error) {
	found := map[netip.Addr]net.HardwareAddr{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	var all []error
	for name, vips := range byDevice(*k.places.Load(), vips) {
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

// Close closes the gate so that no refresh opens it, by making it anew, and then takes every VIP away, whoever put it there.
func (k *Kernel) Close() error {
	k.token.Lock()
	err := k.gate.Install(k.o.Interfaces, k.vips())
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

// Cover changes the VIPs, which are on the same interfaces. What is bound is among them.
func (k *Kernel) Cover(devices map[netip.Addr]string) error {
	k.know(devices)
	return k.gate.Cover(k.vips())
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

// Intact looks whether the gate stands; the reason says what is missing. Where it does not, Close makes it anew.
func (k *Kernel) Intact() (reason string, err error) { return k.gate.Intact() }

// Bind adds addresses, and announces them until they are unbound.
func (k *Kernel) Bind(vips []netip.Addr) error {
	return k.each(vips, func(device int, vips []netip.Addr) error {
		errs := k.addresses.Add(device, vips)
		var there []netip.Addr
		for i, err := range errs {
			if err == nil {
				there = append(there, vips[i])
			}
		}
		k.announcer.Announce(device, there)
		return errors.Join(errs...)
	})
}

// Unbind takes addresses away.
func (k *Kernel) Unbind(vips []netip.Addr) error {
	k.announcer.Forget(vips)
	return k.each(vips, func(device int, vips []netip.Addr) error {
		return errors.Join(k.addresses.Remove(device, vips)...)
	})
}

// each calls do for the VIPs of each device, in their order.
func (k *Kernel) each(vips []netip.Addr, do func(device int, vips []netip.Addr) error) error {
	of := byDevice(k.o.Devices, vips)
	var all []error
	for _, name := range slices.Sorted(maps.Keys(of)) {
		device, err := net.InterfaceByName(name)
		if err != nil {
			all = append(all, fmt.Errorf("looking at interface %q of %v: %w", name, of[name], err))
			continue
		}
		all = append(all, do(device.Index, of[name]))
	}
	return errors.Join(all...)
}

// End closes what NewKernel opened. A closed gate stays: rules of NAT for the VIPs stand on this host, and would take what a client
// still sends here. Cleanup takes it away.
func (k *Kernel) End() error { return errors.Join(k.gate.Close(), k.addresses.Close()) }

// Announced is how many addresses were announced, each time counted.
func (k *Kernel) Announced() uint64 { return k.announcer.Sent() }
