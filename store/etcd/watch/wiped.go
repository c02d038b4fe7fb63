package watch

import (
	"fmt"
	"time"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// wiped is what was followed until etcd turned out to have another history, without some of the services: it was wiped, and may be
// half written again, or was restored from something that lacks them. Users who remove all services do so in the history that is
// followed, and nothing is held back then. What was there stays in use until the new history has services, and no more have come
// for a while: then they are complete, and what they don't have is gone.
type wiped struct {
	state state
	// first and last are when services came; zero means none has.
	first, last time.Time
}

// shown is the state that is published and kept.
func (w *watching) shown() *state {
	if w.wiped != nil {
		return &w.wiped.state
	}
	return &w.state
}

// suspect looks whether what has been read instead of before is that of a wiped etcd. Another: the link knows that it is
// another history. After a restart, that can be told only from the cluster and the revision.
func (w *watching) suspect(before *state, another bool) {
	if before.revision == 0 {
		return
	}
	another = another || before.cluster != 0 && w.state.cluster != before.cluster || w.state.revision < before.revision
	used := before
	if w.wiped != nil {
		used = &w.wiped.state
	}
	switch {
	case !another:
	case w.state.hasServices(used):
		w.wiped = nil // it was restored
	case w.wiped == nil:
		w.wiped = &wiped{state: *before}
	}
	if w.state.services != before.services {
		w.refilled()
	}
}

// hasServices reports whether there are all services that other has.
func (s *state) hasServices(other *state) bool {
	for name := range other.services.Keys() {
		if !s.services.Has(name) {
			return false
		}
	}
	return true
}

// refilled notes that services have come to an etcd that was wiped.
func (w *watching) refilled() {
	if w.wiped == nil || w.state.services.Len() == 0 {
		return
	}
	w.wiped.last = w.timing.Now()
	if w.wiped.first.IsZero() {
		w.wiped.first = w.wiped.last
	}
}

// refillEnd is when the services of a wiped etcd are complete; zero means that is not to be seen yet.
func (w *watching) refillEnd() time.Time {
	if w.wiped == nil || w.wiped.first.IsZero() {
		return time.Time{}
	}
	end, latest := w.wiped.last.Add(w.timing.Refill), w.wiped.first.Add(w.timing.LongestRefill)
	if latest.Before(end) {
		return latest
	}
	return end
}

// problem says what is held, and the way out.
func (h *wiped) problem(keys schema.Keys) balancer.Problem {
	return balancer.Problem{
		Severity: balancer.SeverityError, Origin: balancer.Origin{Key: keys.Prefix + schema.ServiceFolder},
		Text: fmt.Sprintf("etcd was wiped, or restored without some services: what was read up to revision %d stays in use, %d services; write them again (vipctl apply); what etcd has counts once no more have come for %s; if none are meant, write any, and delete it when this problem has gone",
			h.state.revision, h.state.services.Len(), client.RefillTime),
	}
}
