package dataplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"vipd/balancer"
)

// Dataplane applies frontends in a mode. One goroutine at a time calls the methods from Observe to
// Close; any goroutine may call the others. Abilities of only some modes are in separate small
// interfaces, such as [Yields]; [As] looks for these.
type Dataplane interface {
	// Capabilities returns the abilities of this dataplane on this host. It never changes.
	Capabilities() balancer.Capabilities
	// Digest hashes f as this dataplane applies it. No Apply is needed between frontends with equal
	// digests.
	Digest(f *balancer.Frontend) Digest
	// Observe reads all of vipd's objects in the kernel, including an earlier process's. It is the
	// full comparison, so its cost may grow with the number of frontends.
	Observe(ctx context.Context) (Observation, error)
	// Intact checks cheaply whether all of vipd's objects still exist. The engine calls it every
	// second. The reason names a missing object; "" means that none is missing.
	Intact(ctx context.Context) (reason string, err error)
	// Apply makes each key equal to the new value in its change. It is idempotent: an unchanged key
	// and the removal of a missing key succeed. An error of type KeyErrors names the keys that
	// failed, and all others are done. After any other error the state of all keys is unknown, and
	// the engine tries smaller batches.
	Apply(ctx context.Context, batch []Change) error
	// Close ends the dataplane. If keep is set, objects that forward traffic without this process
	// stay in the kernel; otherwise all are removed. Connections drain until ctx ends, but a
	// removal is always completed. Counters stay readable.
	Close(ctx context.Context, keep bool) error
	// Traits returns the dataplane's needs on the host, and how it works there.
	Traits() Traits
	// Counters returns the counts. No number decreases, even if a frontend is removed and added
	// again.
	Counters() []FrontendCount
}

// As returns d as a T, or otherwise the first dataplane wrapped by d that is a T. A wrapper has a
// method Unwrap.
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

// Traits describe a dataplane on this host. They may change with the applied state.
type Traits struct {
	Needs
	// Detail describes in a line how the dataplane works here, and what is missing.
	Detail string
	// Lacks describes what clients lose at present because the host lacks resources; "" means
	// nothing.
	Lacks string
	// Drains reports whether Yield or Close waits for connections to end.
	Drains bool
}

// Digest is a hash of a frontend in the form that a dataplane applies. No frontend has digest 0.
type Digest uint64

// Change is a request to make a key equal to New.
type Change struct {
	Key balancer.Key
	// Old is the frontend that the engine expects to be applied. It is a hint; nil means none or
	// unknown.
	Old *balancer.Frontend
	// New is the desired frontend; nil requests the key's removal.
	New *balancer.Frontend
}

// Observation is the result of Observe.
type Observation struct {
	// Digests has each existing frontend, with the digest of the applied frontend. A damaged
	// frontend has digest 0.
	Digests map[balancer.Key]Digest
	// Damage lists the missing or broken objects that all frontends share. Observe does not repair
	// them: the engine then applies every frontend, and that Apply repairs them.
	Damage []string
	// ReapplyAll requests an Apply of every frontend, even if nothing differs, because the
	// dataplane does not yet know what an earlier process has applied.
	ReapplyAll bool
}

// KeyErrors is Apply's error if the outcome of each key is known.
type KeyErrors map[balancer.Key]error

// Error lists the failed keys, in their order.
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

// Err returns e as Apply's error, or nil if no key failed.
func (e KeyErrors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
