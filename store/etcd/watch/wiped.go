package watch

import (
	"fmt"
	"time"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// wiped is the last state of a history that was replaced by a history without some of its services.
// etcd was wiped and may be partly written again, or was restored from an old backup. This state
// stays in use until the new history has services and none was added for a while. Then the new
// services count as complete, and missing services are removed.
type wiped struct {
	state state
	// refill records the changes to services in the new history.
	refill burst
}

func (w *watchRun) shown() *state {
	if w.wiped != nil {
		return &w.wiped.state
	}
	return &w.state
}

// keepServices keeps before, the previous history's state, in use unless the new history contains
// all of its services.
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
		w.wiped = nil // all services were restored
	case w.wiped == nil:
		w.wiped = &wiped{state: *before}
	}
}

// refilled records that a wiped etcd's services have changed. It ignores changes that leave no
// services.
func (w *watchRun) refilled() {
	if w.wiped != nil && w.state.Services.Len() > 0 {
		w.wiped.refill.add(w.timing.Now())
	}
}

// refillEnd returns when a wiped etcd's services will count as complete, or zero if that is
// unknown.
func (w *watchRun) refillEnd() time.Time {
	if w.wiped == nil {
		return time.Time{}
	}
	return w.wiped.refill.end(w.timing.Refill, w.timing.LongestRefill)
}

// problem reports the services that stay in use, and the remedy.
func (h *wiped) problem(keys schema.Keys) balancer.Problem {
	return balancer.Problem{
		Severity: balancer.SeverityError, Origin: balancer.Origin{Key: keys.Prefix + schema.ServiceFolder},
		Text: fmt.Sprintf("%v, and lacks services: the %d services of revision %d stay in use. Write them again with vipctl apply; %s after the last write, "+
			"vipd uses etcd's services. If etcd should have none, write any service, and delete it when this problem is resolved",
			client.ErrHistoryChanged, h.state.Services.Len(), h.state.Revision, client.RefillTime),
	}
}
