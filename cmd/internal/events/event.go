package events

import (
	"log/slog"
	"strings"
	"time"

	"vipd/balancer"
)

// Kind is an event's subject area.
type Kind string

// These are the kinds of events.
const (
	// Reload means that the configuration and the services files were read again.
	Reload Kind = "reload"
	// Pending means that a change that must be confirmed was made, confirmed or reverted.
	Pending Kind = "pending"
	// Apply means that the dataplane applied a change.
	Apply Kind = "apply"
	// Health means that an endpoint went up or down, or that its share of connections changed
	// because connection attempts to it failed or succeed again.
	Health Kind = "health"
	// Drain means that an endpoint's drain started or ended.
	Drain Kind = "drain"
	// Override means that an operator changed something manually, such as a weight, a drain or a
	// node's configuration, or that such a change has ended.
	Override Kind = "override"
	// Mode means that vipd switched to another mode, or that a mode failed to start.
	Mode Kind = "mode"
	// Drift means that another program changed vipd's objects, and vipd repaired them.
	Drift Kind = "drift"
	// Problem means that a problem started or ended.
	Problem Kind = "problem"
	// Panic means that a service started to use all its endpoints because too few are healthy, or
	// stopped doing so.
	Panic Kind = "panic"
	// Store means that services can't be read from their source, or can be read again.
	Store Kind = "store"
	// VIP means that this host has withdrawn a VIP, or holds it again.
	VIP Kind = "vip"
	// Names means that a lookup of endpoints, through a DNS name or a program, returned a new
	// result.
	Names Kind = "names"
)

// Values lists the kinds.
func (Kind) Values() []string {
	return []string{"reload", "pending", "apply", "health", "drain", "override", "mode", "drift", "problem", "panic", "store", "vip", "names"}
}

// Event is a single event.
type Event struct {
	// Seq is the event's number, which Record sets. The number of the first event is the start time
	// of the process in microseconds, so numbers also increase across restarts.
	Seq uint64 `json:"seq"`
	// At is when the event happened. If zero, Record sets it to the current time.
	At   time.Time `json:"at"`
	Kind Kind      `json:"kind"`
	// Level is the severity, for the log and for colors. The default is info.
	Level slog.Level `json:"level"`
	// Service is the affected service, or "" for the node.
	Service balancer.Name `json:"service,omitempty"`
	// Endpoint is the affected endpoint: ADDRESS:PORT, or ADDRESS for all its ports. It is "" if
	// the event is about the whole service or the node.
	Endpoint string `json:"endpoint,omitempty"`
	// Text describes the event, such as "is down". Its subject is the endpoint or, if there is
	// none, the service. If neither is set, the text is a complete sentence.
	Text string `json:"text"`
	// Cause is the reason for the event, such as "connection refused".
	Cause string `json:"cause,omitempty"`
	// Was is the state that the event ended, such as "up". Lasted is how long that state lasted, or
	// 0 if no state ended or the duration is unknown.
	Was    string        `json:"was,omitempty"`
	Lasted time.Duration `json:"lasted_ns,omitempty"`
	// Took is how long the event itself took, such as a sync.
	Took time.Duration `json:"took_ns,omitempty"`
	// Revision is the store revision to which the event belongs, or 0.
	Revision int64 `json:"revision,omitempty"`
}

// Subject returns the subject of the event: "SERVICE ENDPOINT", "SERVICE", or "".
func (e *Event) Subject() string {
	return strings.TrimSpace(string(e.Service) + " " + e.Endpoint)
}
