package events

import (
	"log/slog"
	"strings"
	"time"

	"vipd/balancer"
)

// Kind says what an event is about.
type Kind string

// The kinds.
const (
	// Reload: the configuration and the files of services were read again.
	Reload Kind = "reload"
	// Apply: a change was applied in the dataplane.
	Apply Kind = "apply"
	// Health: an endpoint was found up or down, or is used or not by what its connections showed.
	Health Kind = "health"
	// Drain: an endpoint began or ended to drain.
	Drain Kind = "drain"
	// Override: an operator changed something by hand: a weight, a drain, what is set for the node.
	Override Kind = "override"
	// Mode: another mode serves, or was to.
	Mode Kind = "mode"
	// Drift: another program changed what is vipd's, and it was repaired.
	Drift Kind = "drift"
	// Problem: something that an operator should know began, or is over.
	Problem Kind = "problem"
	// Panic: so few endpoints of a service are healthy that all are used, or that is over.
	Panic Kind = "panic"
	// Store: where services come from can't be read any more, or again.
	Store Kind = "store"
	// VIP: this host has withdrawn a VIP, or holds it again.
	VIP Kind = "vip"
)

// Values lists the kinds.
func (Kind) Values() []string {
	return []string{"reload", "apply", "health", "drain", "override", "mode", "drift", "problem", "panic", "store", "vip"}
}

// Event is one thing that happened.
type Event struct {
	// Seq orders events: each has the next number, set by Record. The first of a process is the time of its start in
	// microseconds, so that numbers grow over restarts too.
	Seq uint64 `json:"seq"`
	// At is when it happened; zero means when it is recorded.
	At   time.Time `json:"at"`
	Kind Kind      `json:"kind"`
	// Level is how much it matters, for the log and for colours; the default is info.
	Level slog.Level `json:"level"`
	// Service is what it is about; "" means the node.
	Service balancer.Name `json:"service,omitempty"`
	// Endpoint is ADDRESS:PORT, or ADDRESS for all ports; "" means the service as a whole.
	Endpoint string `json:"endpoint,omitempty"`
	// Text says what happened: "is down". Its subject is the endpoint, else the service; a whole sentence where neither
	// is given.
	Text string `json:"text"`
	// Cause says why: "connection refused".
	Cause string `json:"cause,omitempty"`
	// Was names what ended with it ("up"), and Lasted says how long that had lasted; 0 means nothing ended, or not known.
	Was    string        `json:"was,omitempty"`
	Lasted time.Duration `json:"lasted_ns,omitempty"`
	// Took is how long the thing itself took, such as a sync.
	Took time.Duration `json:"took_ns,omitempty"`
	// Revision is the store's that it is about; 0 means none.
	Revision int64 `json:"revision,omitempty"`
}

// Subject names what the event is about: "SERVICE ENDPOINT", "SERVICE", or "".
func (e *Event) Subject() string {
	return strings.TrimSpace(string(e.Service) + " " + e.Endpoint)
}
