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
	"time"
)

// KernelOptions say what a Kernel holds.
type KernelOptions struct {
	Gate GateOptions
	// Devices are those of all VIPs that this host may own, by name.
	Devices map[netip.Addr]string
	// AnnounceEvery repeats announcements; 0: they follow changes alone.
	AnnounceEvery time.Duration
	Log           *slog.Logger
}

// Kernel is gate, addresses and announcements as one: what the process that owns VIPs asks of its host. All but Refresh and Run
// are for one goroutine.
type Kernel struct {
	o         KernelOptions
	gate      *Gate
	addresses *Addresses
	announcer *Announcer
}

// NewKernel opens what it needs. Nothing is changed before Close, which comes first.
func NewKernel(o KernelOptions) (*Kernel, error) {
	g, err := NewGate(o.Gate)
	if err != nil {
		return nil, err
	}
	x, err := NewAddresses()
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return &Kernel{o, g, x, NewAnnouncer(o.AnnounceEvery, o.Log)}, nil
}

// Run announces what is bound until ctx ends.
func (k *Kernel) Run(ctx context.Context) { k.announcer.Run(ctx) }

// Close closes the gate so that no refresh opens it, by making it anew, and then takes every VIP away, whoever put it there.
func (k *Kernel) Close() error {
	vips := slices.SortedFunc(maps.Keys(k.o.Devices), netip.Addr.Compare)
	k.announcer.Forget(vips)
	devices := slices.Compact(slices.Sorted(maps.Values(k.o.Devices)))
	if err := k.gate.Install(devices, vips); err != nil {
		return err
	}
	own, err := k.addresses.Strip(vips)
	if len(own) > 0 {
		err = errors.Join(err, fmt.Errorf("%v are this host's own addresses: a VIP is an address that no host has for itself", own))
	}
	return err
}

// Open opens the gate, for its timeout.
func (k *Kernel) Open() error { return k.gate.Open() }

// Refresh keeps an open gate open, and leaves a closed one as it is. It never waits. What is lost of it closes the gate, which
// is found by that.
func (k *Kernel) Refresh() { _ = k.gate.Refresh() }

// IsOpen asks the kernel whether the gate is open.
func (k *Kernel) IsOpen() (bool, error) { return k.gate.IsOpen() }

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
	of := map[string][]netip.Addr{}
	for _, a := range vips {
		of[k.o.Devices[a]] = append(of[k.o.Devices[a]], a)
	}
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

// Announced is how many addresses were announced, each time counted.
func (k *Kernel) Announced() uint64 { return k.announcer.Sent() }

// Remove takes the gate away and closes what NewKernel opened; the VIPs are gone before.
func (k *Kernel) Remove() error {
	return errors.Join(k.Close(), k.gate.Remove(), k.gate.Close(), k.addresses.Close())
}
