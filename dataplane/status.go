package dataplane

import (
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Status is a snapshot of an engine's progress.
type Status struct {
	// Tried reports whether the first round is over, even if it failed.
	Tried bool
	// Ready reports whether a complete state has been applied, except for frontends in backoff.
	Ready bool
	// Applied is the revision of the last applied state. Frontends in backoff may still have an
	// older revision.
	Applied balancer.Revision
	// Done holds the applied frontends. A frontend is applied as wanted if its pointer here equals
	// the wanted frontend's pointer.
	Done snap.Map[balancer.Key, *balancer.Frontend]
	// Moving reports whether a switch to another dataplane is in progress. If so, Done and Failing
	// describe the new dataplane.
	Moving bool
	// Failing maps each key in backoff to its error.
	Failing map[balancer.Key]error
	// Last is the time when the last round that did work ended, and LastDuration is how long it
	// took. LastFull reports whether it made a full comparison, LastChanges is the number of
	// changed keys, and LastError describes its failures.
	Last         time.Time
	LastDuration time.Duration
	LastFull     bool
	LastChanges  int
	LastError    string
	// Compared is the start of the last full comparison whose round was completed.
	Compared time.Time
	// Repairs is the number of repaired objects that other programs had changed.
	Repairs int
}

// board publishes an engine's status. It is safe for concurrent use.
type board struct{ current atomic.Pointer[posted] }

// posted is a status, with a channel that is closed when a newer status exists.
type posted struct {
	Status
	replaced chan struct{}
}

// Status returns the newest status. The caller must not modify it.
func (b *board) Status() *Status { return &b.current.Load().Status }

// Changed returns a channel that is closed when the status is replaced. To miss no change, call it
// before Status.
func (b *board) Changed() <-chan struct{} { return b.current.Load().replaced }

func (b *board) publish(s Status) {
	if old := b.current.Swap(&posted{s, make(chan struct{})}); old != nil {
		close(old.replaced)
	}
}
