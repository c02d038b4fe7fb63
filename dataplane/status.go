package dataplane

import (
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Status is a snapshot of an engine's progress.
type Status struct {
	// Tried reports whether a first round has ended, even if it failed.
	Tried bool
	// Ready reports whether the first complete state was applied, apart from frontends in backoff.
	Ready bool
	// Applied is the revision of the last applied state, apart from frontends in backoff.
	Applied balancer.Revision
	// Done has the applied frontends. A frontend is applied as wanted if it has the wanted pointer.
	Done snap.Map[balancer.Key, *balancer.Frontend]
	// Moving reports whether another dataplane is taking over. Done and Failing are then about that
	// dataplane.
	Moving bool
	// Failing has the error of each key in backoff.
	Failing map[balancer.Key]error
	// Last is the end of the last round that had work. LastDuration is its length, LastFull reports
	// whether it compared in full, LastChanges is the number of changed keys, and LastError its
	// failures.
	Last         time.Time
	LastDuration time.Duration
	LastFull     bool
	LastChanges  int
	LastError    string
	// Compared is the start of the last complete full comparison.
	Compared time.Time
	// Repairs counts the objects that other programs had changed and the engine has repaired.
	Repairs int
}

// board publishes an engine's status. Any goroutine may read it.
type board struct{ current atomic.Pointer[posted] }

// posted is a status and the channel that is closed when there is a newer one.
type posted struct {
	Status
	replaced chan struct{}
}

// Status returns the newest status, which nothing changes.
func (b *board) Status() *Status { return &b.current.Load().Status }

// Changed returns a channel that is closed when the status is replaced. Call it before Status.
func (b *board) Changed() <-chan struct{} { return b.current.Load().replaced }

func (b *board) publish(s Status) {
	if old := b.current.Swap(&posted{s, make(chan struct{})}); old != nil {
		close(old.replaced)
	}
}
