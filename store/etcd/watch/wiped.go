package watch

import (
	"fmt"
	"time"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// wiped is the state that was followed until etcd had another history without some of the services:
// it was wiped, and may be half written again, or a backup lacked them. It stays in use until the
// new history has services, and no more have been added for a while: then they are complete, and
// services that it lacks are removed.
type wiped struct {
	state state
	// refill are the services that were added.
	refill burst
}

// shown returns the state that is published and kept.
func (w *watchRun) shown() *state {
	if w.wiped != nil {
		return &w.wiped.state
	}
	return &w.state
}

// keepServices keeps the state before another history was read, unless that has all of its
// services.
func (w *watchRun) keepServices(before *state) {
	used := before
	if w.wiped != nil {
		used = &w.wiped.state
	}
	complete := true
	for name := range used.Services.Keys() {
		complete = complete && w.state.Services.Has(name)
	}
	switch {
	case complete:
		w.wiped = nil // it was restored
	case w.wiped == nil:
		w.wiped = &wiped{state: *before}
	}
}

// refilled notes that services were added to an etcd that was wiped.
func (w *watchRun) refilled() {
	if w.wiped != nil && w.state.Services.Len() > 0 {
		w.wiped.refill.add(w.timing.Now())
	}
}

// refillEnd returns when the services of a wiped etcd are complete; zero means that is unknown.
func (w *watchRun) refillEnd() time.Time {
	if w.wiped == nil {
		return time.Time{}
	}
	return w.wiped.refill.end(w.timing.Refill, w.timing.LongestRefill)
}

// problem reports what stays in use, and the way out.
func (h *wiped) problem(keys schema.Keys) balancer.Problem {
	return balancer.Problem{
		Severity: balancer.SeverityError, Origin: balancer.Origin{Key: keys.Prefix + schema.ServiceFolder},
		Text: fmt.Sprintf("%v, and lacks services: the %d services of revision %d stay in use. Write them again (vipctl apply): %s after the last one "+
			"etcd's services count. If none are meant, write any service, and delete it when this problem has gone",
			client.ErrAnother, h.state.Services.Len(), h.state.Revision, client.RefillTime),
	}
}
