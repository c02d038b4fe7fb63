package failover

import (
	"cmp"
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

// Kernel combines the gate, addresses and announcements for the process that owns VIPs. Only
// Refresh, Run and Probe are safe for concurrent use.
type Kernel struct {
	o         KernelOptions
	gate      *Gate
	addresses *Addresses
	announcer *Announcer
	// left holds the VIPs that an earlier process may have left on this host, until the first Close
	// removes them.
	left []netip.Addr

	places atomic.Pointer[Places] // o.Places for Probe and Run
	moved  wake.Signal            // sent when the places have changed
	token  sync.Mutex             // held while the gate is replaced, during which Refresh does nothing
}

// NewKernel opens the sockets. It returns an error if this kernel can't fence VIPs. It does not
// change any rules or addresses. Call Close before any other method.
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
	k.setPlaces(o.Places)
	return k, nil
}

// setPlaces replaces the interfaces that may have VIPs, and wakes Run. The caller must not modify p
// afterwards.
func (k *Kernel) setPlaces(p Places) {
	k.o.Places = p
	k.places.Store(&p)
	k.moved.Send()
}

// Run announces bound VIPs, and listens for other hosts that claim them, until ctx is canceled.
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
				running.Go(func() { k.listenForHosts(on, name, p.Reach[name]) })
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

// listener is an active call of listenForHosts.
type listener struct {
	stop  context.CancelFunc
	hosts []netip.Addr
}

// listenForHosts reports other hosts that claim VIPs on an interface until ctx is canceled. It also
// sends requests to hosts, and reports their answers.
func (k *Kernel) listenForHosts(ctx context.Context, name string, hosts []netip.Addr) {
	var listening sync.WaitGroup
	listening.Go(func() {
		k.listen(ctx, name, "can't listen for other hosts with VIPs", func(device int) error {
			return Rivals(ctx, device, k.announcer.Defend, k.o.Rival)
		})
	})
	if len(hosts) > 0 {
		listening.Go(func() {
			k.listen(ctx, name, "can't query the hosts in ownership.reach", func(device int) error {
				return Reach(ctx, device, hosts, reaching, func() { k.o.Reached(name, hosts) })
			})
		})
	}
	listening.Wait()
}

// reaching is the interval of the requests to the hosts in Places.Reach.
const reaching = 100 * time.Millisecond

// listen repeatedly calls the function do with the index of an interface until ctx is canceled. It
// waits for a second between calls, and while the interface is missing.
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

// Probe asks whether other hosts have VIPs, and returns the MACs of the hosts that answer within a
// time limit. If within is 0, it uses the default limit. It is safe for concurrent use.
func (k *Kernel) Probe(ctx context.Context, vips []netip.Addr, within time.Duration) (map[netip.Addr]net.HardwareAddr, error) {
	found := map[netip.Addr]net.HardwareAddr{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	var all []error
	for name, vips := range byDevice(k.places.Load().Devices, vips) {
		asking.Go(func() {
			answers, err := elsewhere(ctx, name, vips, cmp.Or(within, usualPatience))
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(found, answers)
			all = append(all, err)
		})
	}
	asking.Wait()
	return found, errors.Join(all...)
}

func byDevice(devices map[netip.Addr]string, vips []netip.Addr) map[string][]netip.Addr {
	grouped := map[string][]netip.Addr{}
	for _, a := range vips {
		grouped[devices[a]] = append(grouped[devices[a]], a)
	}
	return grouped
}

func (k *Kernel) vips() []netip.Addr {
	return slices.SortedFunc(maps.Keys(k.o.Devices), netip.Addr.Compare)
}

// Close replaces the gate with a closed gate, which earlier refreshes can't open. Then it removes
// every VIP from this host, including VIPs that another program added.
func (k *Kernel) Close() error {
	if err := k.strip(k.left); err != nil { // first, because the new table does not list these VIPs
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
		k.o.Log.Error("VIPs have become this host's own addresses, and can't move: give the host other addresses", "addresses", own)
	}
	return err
}

// Cover changes the VIPs and the interfaces that may have them. The VIPs must include all bound
// VIPs. Cover removes new VIPs from this host, because the gate may be open while another host owns
// them. It also removes VIPs whose interface has changed, which Lost returns if they were bound.
func (k *Kernel) Cover(p Places) error {
	before := k.o.Devices
	k.setPlaces(p)
	if err := k.follow(); err != nil {
		return err
	}
	if err := k.strip(slices.DeleteFunc(k.vips(), func(a netip.Addr) bool { return k.gate.vips[a] && before[a] == p.Devices[a] })); err != nil {
		return err
	}
	return k.gate.Cover(k.vips())
}

// follow makes the gate cover the places' existing interfaces.
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
	if err := k.strip(away); err != nil { // a renamed interface still has the VIPs of its previous name
		return err
	}
	return k.gate.Follow(present)
}

// present returns the places' existing interfaces.
func (k *Kernel) present() (names []string) {
	for _, name := range k.o.Interfaces {
		if _, err := net.InterfaceByName(name); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// Open opens the gate for its timeout.
func (k *Kernel) Open() error { return k.gate.Open() }

// Refresh extends the timeout of an open gate. A closed gate stays closed. Refresh never blocks. If
// too many refreshes are lost, the gate closes.
func (k *Kernel) Refresh() {
	if k.token.TryLock() {
		_ = k.gate.Refresh() // the gate tolerates a few lost refreshes
		k.token.Unlock()
	}
}

// Intact describes a missing part of the gate, or returns "". Close repairs the gate. Intact also
// makes the gate follow interfaces that appear and disappear.
func (k *Kernel) Intact() (reason string, err error) {
	if err := k.follow(); err != nil {
		return "", err
	}
	return k.gate.Intact()
}

// Bind adds VIPs, and announces them until Unbind. It does not add VIPs to interfaces without the
// gate. It returns an error for each VIP that it could not add, and stops announcing these VIPs.
func (k *Kernel) Bind(vips []netip.Addr) map[netip.Addr]error {
	failed := map[netip.Addr]error{}
	for name, vips := range byDevice(k.o.Devices, vips) {
		device, err := net.InterfaceByName(name)
		if err == nil && !slices.Contains(k.gate.devices, name) {
			err = k.follow() // the interface may have just appeared
		}
		if err == nil && !slices.Contains(k.gate.devices, name) {
			err = errors.New("the device has no gate")
		}
		if err != nil {
			for _, a := range vips {
				failed[a] = fmt.Errorf("reading interface %q: %w", name, err)
			}
			continue
		}
		var added []netip.Addr
		for i, err := range k.addresses.Add(device.Index, vips) {
			if err == nil {
				added = append(added, vips[i])
			} else {
				failed[vips[i]] = err
			}
		}
		k.announcer.Announce(device.Index, added)
	}
	k.announcer.Forget(slices.Collect(maps.Keys(failed)))
	return failed
}

// Unbind removes VIPs. If their interface is missing, Unbind removes them from all other
// interfaces, because the interface may have been renamed.
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

func (k *Kernel) strip(vips []netip.Addr) error {
	if len(vips) == 0 {
		return nil
	}
	_, err := k.addresses.Strip(vips)
	return err
}

// End closes the sockets. The closed gate remains, because otherwise this host's NAT rules would
// translate packets that clients still send here. [Cleanup] removes the gate.
func (k *Kernel) End() error { return errors.Join(k.gate.Close(), k.addresses.Close()) }

// Announced returns the number of announcements sent.
func (k *Kernel) Announced() uint64 { return k.announcer.Sent() }
