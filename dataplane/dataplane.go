package dataplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"vipd/balancer"
)

// Dataplane applies frontends in one mode. The methods from Observe to Close must not be called
// concurrently. The other methods are safe for concurrent use. Abilities that only some modes have
// are separate small interfaces, such as [Yields]. Use [As] to find them.
type Dataplane interface {
	// Capabilities returns what this dataplane can do on this host. The result never changes.
	Capabilities() balancer.Capabilities
	// Digest returns a hash of f in the form that this dataplane applies. If the digests of two
	// frontends are equal, no Apply is needed to replace one with the other.
	Digest(f *balancer.Frontend) Digest
	// Observe reads all of vipd's objects in the kernel, including an earlier process's objects.
	// This is the full comparison, so its cost may grow with the number of frontends.
	Observe(ctx context.Context) (Observation, error)
	// Intact performs a cheap check whether all of vipd's objects exist. The engine calls it every
	// second. The reason describes a missing object, and is "" if none is missing.
	Intact(ctx context.Context) (reason string, err error)
	// Apply changes each key as its change requests. It is idempotent: applying an unchanged key
	// and removing a missing key succeed. An error of type KeyErrors holds the keys that failed,
	// and all other keys were applied. After any other error, the state of all keys is unknown, and
	// the engine tries smaller batches.
	Apply(ctx context.Context, batch []Change) error
	// Close shuts the dataplane down. If keep is set, objects that forward traffic without this
	// process remain in the kernel. Otherwise all objects are removed. Connections drain until ctx
	// is done, but the removal always completes. Counters can still be read after Close.
	Close(ctx context.Context, keep bool) error
	// Traits returns the dataplane's requirements for the host, and describes how it works on this
	// host.
	Traits() Traits
	// Counters returns the counts. No count decreases, even if a frontend is removed and added
	// again.
	Counters() []FrontendCount
}

// As returns d if it implements T. Otherwise it returns the first dataplane wrapped by d that does.
// A wrapper has an Unwrap method.
func As[T any](d Dataplane) (T, bool) {
	for d != nil {
		if t, ok := any(d).(T); ok {
			return t, true
		}
		w, wraps := d.(interface{ Unwrap() Dataplane })
		if !wraps {
			break
		}
		d = w.Unwrap()
	}
	var none T
	return none, false
}

// Traits describes a dataplane on this host. It may change with the applied state.
type Traits struct {
	Needs
	// Detail describes in a single line how the dataplane works on this host, and which features
	// are missing.
	Detail string
	// Lacks describes which resources the host lacks, and the effects on clients. It is "" if it
	// lacks none.
	Lacks string
	// Drains reports whether Yield or Close waits for connections to end.
	Drains bool
}

// Digest is a hash of the fields of a frontend that a dataplane applies. No frontend has the digest
// 0.
type Digest uint64

// Change is a request to change the frontend of Key to New.
type Change struct {
	Key balancer.Key
	// Old is the applied frontend, as far as the engine knows. It is only a hint. It is nil if no
	// frontend is applied or the state is unknown.
	Old *balancer.Frontend
	// New is the desired frontend. If nil, the key must be removed.
	New *balancer.Frontend
}

// Observation is the result of Observe.
type Observation struct {
	// Digests maps the key of each existing frontend to the digest of the applied frontend. A
	// damaged frontend has the digest 0.
	Digests map[balancer.Key]Digest
	// Damage lists the missing or broken objects that all frontends share. Observe does not repair
	// them. Instead, the engine applies every frontend, which repairs them.
	Damage []string
	// ReapplyAll requests that every frontend be applied even if nothing differs. A dataplane sets
	// it while the frontends of an earlier process are unknown.
	ReapplyAll bool
}

// KeyErrors is the error of Apply if the outcome of each key is known. It maps the failed keys to
// their errors.
type KeyErrors map[balancer.Key]error

// Error returns the error messages, in the order of their keys.
func (e KeyErrors) Error() string {
	texts := make([]string, 0, len(e))
	for _, k := range e.keys() {
		texts = append(texts, fmt.Sprintf("%s: %v", k, e[k]))
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors, in the order of their keys.
func (e KeyErrors) Unwrap() []error {
	all := make([]error, 0, len(e))
	for _, k := range e.keys() {
		all = append(all, e[k])
	}
	return all
}

func (e KeyErrors) keys() []balancer.Key {
	return slices.SortedFunc(maps.Keys(e), balancer.Key.Compare)
}

// Err returns e as an error. It returns nil if no key failed.
func (e KeyErrors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
