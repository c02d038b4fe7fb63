package dataplane

import (
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Status is how far an engine is. It is a snapshot: it does not change after it was given out.
type Status struct {
	// Tried: a first round has ended, however.
	Tried bool
	// Ready: the first complete state was applied, single frontends in backoff aside.
	Ready bool
	// Applied is the revision of the state that was last applied, frontends in backoff aside.
	Applied balancer.Revision
	// Done is what is applied. A frontend is as wanted when it has the pointer that is wanted.
	Done snap.Map[balancer.Key, *balancer.Frontend]
	// Moving: another dataplane is taking over; Done and Failing are about that one.
	Moving bool
	// Failing are the keys in backoff, with the error of the last try.
	Failing map[balancer.Key]error
	// Last is when the last sync that had work ended, with its length, whether it compared in full, the number of keys
	// that it changed, and its first failure. The engine's maker reports it.
	Last         time.Time
	LastDuration time.Duration
	LastFull     bool
	LastChanges  int
	LastError    string
	// Compared is when the last full comparison began that could read everything and has ended.
	Compared time.Time
	// Repairs counts objects that other programs had changed, and that the engine has repaired.
	Repairs int
}

// Status returns the newest status.
func (e *Engine) Status() *Status { return e.status.Load() }

// Changed returns a channel that is closed when the status is replaced. Take it before looking at Status.
func (e *Engine) Changed() <-chan struct{} { return *e.changed.Load() }

// publish gives out the report.
func (e *Engine) publish() {
	s := e.report
	e.status.Store(&s)
	next := make(chan struct{})
	close(*e.changed.Swap(&next))
}

type noMetrics struct{}

func (noMetrics) Synced(bool, time.Duration, int, bool) {}
func (noMetrics) Programmed(time.Duration)              {}
func (noMetrics) Repaired(int, string)                  {}
