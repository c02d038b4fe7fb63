package owner

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
	"time"

	"vipd/dataplane/ownership"
)

// linux is the Kernel of Linux.
type linux struct {
	log     *slog.Logger
	gate    *ownership.Gate
	addrs   *ownership.Addresses
	tell    *ownership.Announcer
	devices map[netip.Addr]string

	token sync.Mutex // of the gate: while it is exchanged nothing is refreshed
}

// NewKernel returns the Kernel of this host, for VIPs on their devices. It changes nothing yet.
func NewKernel(log *slog.Logger, gate, announce time.Duration) func(map[netip.Addr]string) (Kernel, error) {
	return func(devices map[netip.Addr]string) (Kernel, error) {
		if err := ownership.Trial(); err != nil {
			return nil, err
		}
		g, err := ownership.NewGate(ownership.GateOptions{Timeout: gate})
		if err != nil {
			return nil, err
		}
		addrs, err := ownership.NewAddresses()
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		return &linux{log: log, gate: g, addrs: addrs, tell: ownership.NewAnnouncer(announce, log), devices: maps.Clone(devices)}, nil
	}
}

// Run announces until ctx ends.
func (k *linux) Run(ctx context.Context) { k.tell.Run(ctx) }

func (k *linux) vips() []netip.Addr {
	return slices.SortedFunc(maps.Keys(k.devices), netip.Addr.Compare)
}

// Close installs the gate anew, and strips all VIPs from all devices.
func (k *linux) Close() error {
	var devices []string
	for _, d := range k.devices {
		devices = append(devices, d)
	}
	slices.Sort(devices)
	k.token.Lock()
	err := k.gate.Install(slices.Compact(devices), k.vips())
	k.token.Unlock()
	if err != nil {
		return err
	}
	k.tell.Forget(k.vips())
	own, err := k.addrs.Strip(k.vips())
	if len(own) > 0 {
		k.log.Error("VIPs are this host's own addresses, and can't move: leave them out, or give the host others", "addresses", own)
	}
	return err
}

// Cover changes the VIPs. Devices stay the same.
func (k *linux) Cover(devices map[netip.Addr]string) error {
	k.devices = maps.Clone(devices)
	return k.gate.Cover(k.vips())
}

// Open opens the gate.
func (k *linux) Open() error { return k.gate.Open() }

// Refresh keeps it open.
func (k *linux) Refresh() {
	if k.token.TryLock() {
		_ = k.gate.Refresh() // one that is lost is one of eight
		k.token.Unlock()
	}
}

// Intact says what somebody else has changed of the gate.
func (k *linux) Intact() (string, error) { return k.gate.Intact() }

// Bind adds VIPs and announces them.
func (k *linux) Bind(vips []netip.Addr) error {
	return k.each(vips, func(device int, vips []netip.Addr) error {
		err := errors.Join(k.addrs.Add(device, vips)...)
		k.tell.Announce(device, vips)
		return err
	})
}

// Unbind takes VIPs away.
func (k *linux) Unbind(vips []netip.Addr) error {
	k.tell.Forget(vips)
	return k.each(vips, func(device int, vips []netip.Addr) error { return errors.Join(k.addrs.Remove(device, vips)...) })
}

// each calls f for the VIPs of each device.
func (k *linux) each(vips []netip.Addr, f func(device int, vips []netip.Addr) error) error {
	of := map[string][]netip.Addr{}
	for _, v := range vips {
		of[k.devices[v]] = append(of[k.devices[v]], v)
	}
	var all []error
	for name, vips := range of {
		device, err := net.InterfaceByName(name)
		if err != nil {
			all = append(all, fmt.Errorf("finding the device of %s: %w", vips[0], err))
			continue
		}
		all = append(all, f(device.Index, vips))
	}
	return errors.Join(all...)
}

// End takes the gate away, once no VIP is here.
func (k *linux) End() error { return errors.Join(k.gate.Remove(), k.gate.Close(), k.addrs.Close()) }
