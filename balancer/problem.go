package balancer

import (
	"fmt"
	"strings"
)

// Severity describes how far a problem prevents vipd from serving a definition as written.
type Severity string

// These are the severities. The zero value means SeverityError.
const (
	// SeverityError means that the field, service or file can't be used.
	SeverityError Severity = "error"
	// SeverityNearest means that the service runs with the nearest alternative that the mode
	// supports.
	SeverityNearest Severity = "nearest"
	// SeverityWarning means that everything is served as written, but an operator should check the
	// definition.
	SeverityWarning Severity = "warning"
)

// ProblemKind classifies problems that programs treat specially.
type ProblemKind string

// These are the kinds of problems.
const (
	// Refused means that the node's configuration does not allow a setting of a service from etcd.
	Refused ProblemKind = "refused"
	// PortReserved means that a program on the node needs the port. No setting allows services to
	// use such a port.
	PortReserved ProblemKind = "reserved"
	// Held means that another service holds the address and port.
	Held ProblemKind = "held"
	// InPanic means that endpoints of a port are used although their checks fail.
	InPanic ProblemKind = "panic"
	// Outage means that no endpoint of a port is used, because all of them fail their checks or
	// fewer than min_usable are usable.
	Outage ProblemKind = "outage"
	// Unapplied means that this host could not apply the compiled state to its kernel.
	Unapplied ProblemKind = "unapplied"
	// Idle means that a service has no endpoints, or that settings exclude all endpoints of a port.
	Idle ProblemKind = "idle"
	// Unanswered means that an endpoint does not answer new connections. Problem.Text starts with
	// the endpoint's address.
	Unanswered ProblemKind = "unanswered"
	// Unchecked means that this node can't run the checks of some endpoints. Problem.Text starts
	// with the first such endpoint's address.
	Unchecked ProblemKind = "unchecked"
	// Unresolved means that a lookup of endpoints failed.
	Unresolved ProblemKind = "unresolved"
	// NeedsRestart means that a changed setting needs a restart of vipd.
	NeedsRestart ProblemKind = "restart"
)

// Problem is a mistake in a definition, or a setting that this node can't honour. The commands
// check and status, the log and the metrics show problems. Problems never prevent the valid parts
// of a configuration from being applied.
type Problem struct {
	Severity Severity `json:"severity"`
	// Origin is the file and line, or the etcd key and revision.
	Origin Origin `json:"origin,omitzero"`
	// Service is "" if the problem does not belong to a single service.
	Service Name `json:"service,omitempty"`
	// Field is the path of the field in its table, such as endpoints[2].weight. "" means the whole
	// table.
	Field string `json:"field,omitempty"`
	// Kind is "" for problems that programs don't treat specially.
	Kind ProblemKind `json:"kind,omitempty"`
	// Unknown reports whether this version does not know the field.
	Unknown bool `json:"-"`
	// Misplaced reports whether the field may belong to another table, whose heading is missing.
	Misplaced bool `json:"-"`
	// Port is the port with the problem, such as "80/tcp" (see Service.PortWords). It is "" if the
	// problem does not concern a single port.
	Port string `json:"port,omitempty"`
	// Text explains the problem, and names the permitted values or the fix.
	Text string `json:"text"`
}

// PortText returns Text, preceded by Port if it is not "".
func (p *Problem) PortText() string {
	if p.Port == "" {
		return p.Text
	}
	return "port " + p.Port + ": " + p.Text
}

// String formats the problem in one line: place, service, field, port and text.
func (p Problem) String() string {
	var b strings.Builder
	if at := p.place(); at != "" {
		fmt.Fprintf(&b, "%s: ", at)
	}
	if p.Service != "" {
		fmt.Fprintf(&b, "service %s: ", p.Service)
	}
	if p.Field != "" {
		fmt.Fprintf(&b, "%s: ", p.Field)
	}
	b.WriteString(p.PortText())
	return b.String()
}

// place formats the origin as an etcd key, FILE:LINE or FILE.
func (p Problem) place() string {
	switch {
	case p.Origin.Key != "":
		return p.Origin.Key
	case p.Origin.File != "" && p.Origin.Line > 0:
		return fmt.Sprintf("%s:%d", p.Origin.File, p.Origin.Line)
	}
	return p.Origin.File
}
