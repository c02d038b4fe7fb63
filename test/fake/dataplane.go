package fake

import (
	"context"
	"fmt"
	"maps"

	"vipd/balancer"
	"vipd/dataplane"
)

// Dataplane applies frontends to a Kernel.
type Dataplane struct {
	kernel *Kernel
	known  map[balancer.Key]bool // the frontends that Intact expects
}

var _ dataplane.Dataplane = (*Dataplane)(nil)

// New returns a dataplane over k.
func New(k *Kernel) *Dataplane { return &Dataplane{kernel: k, known: map[balancer.Key]bool{}} }

// Capabilities returns every capability.
func (d *Dataplane) Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:      "fake",
		Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		Forwards:  []balancer.Forward{balancer.NATForward, balancer.DRForward, balancer.TunnelForward}, KeepsSource: true, ClientSource: true,
		ProxyProtocol: true, AcceptsProxy: true, Timeouts: true, MaxConnections: true, DropsClients: true, LoopbackVIPs: true,
	}
}

// Digest returns a digest of all fields.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return dataplane.DigestOf(f) }

// Traits returns the zero value, because the fake needs nothing from the host.
func (d *Dataplane) Traits() dataplane.Traits { return dataplane.Traits{} }

// Counters returns nothing, because there is no traffic.
func (d *Dataplane) Counters() []dataplane.FrontendCount { return nil }

// Observe returns the kernel's frontends.
func (d *Dataplane) Observe(context.Context) (dataplane.Observation, error) {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	if d.kernel.faultLocked() {
		return dataplane.Observation{}, fmt.Errorf("observing: %w", ErrInjected)
	}
	clear(d.known)
	for k := range d.kernel.frontends {
		d.known[k] = true
	}
	return dataplane.Observation{Digests: maps.Clone(d.kernel.frontends)}, nil
}

// Intact counts the frontends, like the cheap checks of kernel dataplanes.
func (d *Dataplane) Intact(context.Context) (string, error) {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	if d.kernel.faultLocked() {
		return "", fmt.Errorf("looking: %w", ErrInjected)
	}
	if have := len(d.kernel.frontends); have != len(d.known) {
		return fmt.Sprintf("%d frontends are there instead of %d", have, len(d.known)), nil
	}
	return "", nil
}

// Apply makes the changes, except injected failures.
func (d *Dataplane) Apply(_ context.Context, batch []dataplane.Change) error {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	d.kernel.applies++
	stop, lost := len(batch), false
	if d.kernel.faultLocked() {
		// A failed call applies a random part of the batch. If it applies everything, only the
		// answer is lost.
		stop, lost = d.kernel.random.IntN(len(batch)+1), true
	}
	failed := dataplane.KeyErrors{}
	for i, c := range batch {
		err := fmt.Errorf("changing %s: %w", c.Key, ErrInjected)
		if i < stop || d.kernel.faults.ByKey {
			err = d.kernel.writeLocked(c)
		}
		switch {
		case err == nil && c.New == nil:
			delete(d.known, c.Key)
		case err == nil:
			d.known[c.Key] = true
		case d.kernel.faults.ByKey:
			failed[c.Key] = err
		default:
			return err
		}
	}
	switch {
	case len(failed) > 0:
		return failed
	case lost:
		return fmt.Errorf("changing %d frontends: %w", len(batch), ErrInjected)
	}
	return nil
}

// Close removes everything unless keep is set.
func (d *Dataplane) Close(_ context.Context, keep bool) error {
	d.kernel.mu.Lock()
	defer d.kernel.mu.Unlock()
	if !keep {
		clear(d.kernel.frontends)
	}
	return nil
}
