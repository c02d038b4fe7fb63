package fake

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"sync"

	"vipd/balancer"
	"vipd/dataplane"
)

// ErrInjected is the error that injected failures return.
var ErrInjected = errors.New("injected fault")

// Kernel is the state that outlives a dataplane and a host. Its methods are safe for concurrent
// use.
type Kernel struct {
	mu        *sync.Mutex // shared by all kernels of a host
	frontends map[balancer.Key]dataplane.Digest
	addresses map[netip.Addr]bool
	writes    int
	applies   int
	faults    Faults
	random    *rand.Rand
}

// Faults configures injected failures.
type Faults struct {
	// Share is the share of all calls that fail, from 0 to 1. A failing Apply applies a random part
	// of its batch, or all of it.
	Share float64
	// Keys are the keys whose changes always fail.
	Keys map[balancer.Key]bool
	// ByKey makes Apply report an error for each failed key, instead of one error for the batch.
	ByKey bool
}

// NewKernel returns an empty kernel without faults.
func NewKernel() *Kernel {
	return newKernel(&sync.Mutex{}, map[netip.Addr]bool{})
}

func newKernel(mu *sync.Mutex, addresses map[netip.Addr]bool) *Kernel {
	return &Kernel{mu: mu, frontends: map[balancer.Key]dataplane.Digest{}, addresses: addresses, random: rand.New(rand.NewPCG(1, 2))}
}

// Beside returns the kernel of another dataplane on the same host. It has its own frontends and
// faults, but shares k's addresses.
func (k *Kernel) Beside() *Kernel { return newKernel(k.mu, k.addresses) }

// Fail sets the faults. seed determines the calls that fail.
func (k *Kernel) Fail(f Faults, seed uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults, k.random = f, rand.New(rand.NewPCG(seed, 3))
}

// Frontends returns a copy of the frontends.
func (k *Kernel) Frontends() map[balancer.Key]dataplane.Digest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.frontends)
}

// Addresses returns a copy of the addresses.
func (k *Kernel) Addresses() map[netip.Addr]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.addresses)
}

// Writes returns the number of changes to frontends so far.
func (k *Kernel) Writes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// Applies returns the number of calls to Apply so far.
func (k *Kernel) Applies() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.applies
}

// Tamper changes the frontends as another program would.
func (k *Kernel) Tamper(change func(map[balancer.Key]dataplane.Digest)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k.frontends)
}

// TamperAddresses changes the addresses as another program would.
func (k *Kernel) TamperAddresses(change func(map[netip.Addr]bool)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(k.addresses)
}

// faultLocked decides whether this call fails.
func (k *Kernel) faultLocked() bool { return k.random.Float64() < k.faults.Share }

// writeLocked makes one change, or rejects it.
func (k *Kernel) writeLocked(c dataplane.Change) error {
	if k.faults.Keys[c.Key] {
		return fmt.Errorf("changing %s: %w", c.Key, ErrInjected)
	}
	if c.New == nil {
		delete(k.frontends, c.Key)
		k.writes++
		return nil
	}
	if err := refuse(c); err != nil {
		return err
	}
	for other := range k.frontends {
		if other != c.Key && other.Port.IsRange() && other.Addr == c.Key.Addr && other.Proto == c.Key.Proto && other.Port.Overlaps(c.Key.Port) {
			return fmt.Errorf("changing %s: %s overlaps it", c.Key, other)
		}
	}
	if !c.New.NodePort && !k.addresses[c.Key.Addr] {
		return fmt.Errorf("changing %s: its address is not there", c.Key)
	}
	k.frontends[c.Key] = dataplane.DigestOf(c.New)
	k.writes++
	return nil
}

// refuse returns an error for a change that no kernel would accept.
func refuse(c dataplane.Change) error {
	f := c.New
	if f.Key != c.Key || !c.Key.Addr.IsValid() || c.Key.Port == 0 || c.Key.Proto == "" {
		return fmt.Errorf("changing %s: the frontend is for %s", c.Key, f.Key)
	}
	for i, b := range f.Backends {
		switch {
		case b.Addr.Addr().Is4() != c.Key.Addr.Is4():
			return fmt.Errorf("changing %s: backend %s is of another family", c.Key, b.Addr)
		case (b.State == balancer.Active) != (b.Weight > 0) || b.Weight > balancer.MaxWeight:
			return fmt.Errorf("changing %s: backend %s is %s with weight %d", c.Key, b.Addr, b.State, b.Weight)
		case i > 0 && f.Backends[i-1].Addr.Compare(b.Addr) >= 0:
			return fmt.Errorf("changing %s: backend %s is not in order", c.Key, b.Addr)
		}
	}
	return nil
}
