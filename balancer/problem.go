package balancer

import (
	"fmt"
	"strings"
)

// Severity says whether a problem keeps what it is about from being served as written.
type Severity string

// The severities. The zero value is an error.
const (
	// SeverityError: the field, service or file can't be used as it stands.
	SeverityError Severity = "error"
	// SeverityNearest: the service runs, but the mode in use serves the field in the nearest way that it can.
	SeverityNearest Severity = "nearest"
	// SeverityWarning: nothing is lost; an operator should look.
	SeverityWarning Severity = "warning"
)

// ProblemKind says what kind of thing a problem is about.
type ProblemKind string

// The kinds of problems.
const (
	// Refused: a service from etcd asks for what the node's configuration does not grant it.
	Refused ProblemKind = "refused"
	// Reserving: it asks for a port that something on the node needs; no configuration grants that.
	Reserving ProblemKind = "reserved"
	// Held: another service has the address and port that a service claims.
	Held ProblemKind = "held"
	// InPanic: endpoints of a port are used in spite of their health.
	InPanic ProblemKind = "panic"
	// Outage: a port has no endpoint left.
	Outage ProblemKind = "outage"
	// Unapplied: what is compiled could not be carried out here.
	Unapplied ProblemKind = "unapplied"
	// Idle: a service has no endpoint, or none of a port may take new connections, though none fails.
	Idle ProblemKind = "idle"
	// Unanswered means that an endpoint leaves new connections without an answer. The text begins with its address.
	Unanswered ProblemKind = "unanswered"
)

// Problem is one thing that is wrong with what users wrote, or that can't be done here. Problems are collected and
// shown (check, status, log, metric), they never stop what is right beside them.
type Problem struct {
	Severity Severity `json:"severity"`
	// Origin is the place: file and line, or key and revision.
	Origin Origin `json:"origin,omitzero"`
	// Service is "" where the problem belongs to no single service.
	Service Name `json:"service,omitempty"`
	// Field is the path of the field inside its table, such as endpoints[2].weight; "" for the whole.
	Field string `json:"field,omitempty"`
	// Kind tells apart the problems that programs treat specially; "" for all others.
	Kind ProblemKind `json:"kind,omitempty"`
	// Unknown: this version has no such field.
	Unknown bool `json:"-"`
	// Misplaced reports whether the value may belong to another table, whose heading is missing.
	Misplaced bool `json:"-"`
	// Port is the port of a problem with one port's endpoints, such as "80/tcp", as Service.PortWords writes it; "" for all others.
	Port string `json:"port,omitempty"`
	// Text says what is wrong and what is allowed or helps.
	Text string `json:"text"`
}

// PortText is the text, after the port where the problem has one.
func (p *Problem) PortText() string {
	if p.Port == "" {
		return p.Text
	}
	return "port " + p.Port + ": " + p.Text
}

// String writes the problem in one line: place, service, field, port and text.
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

// place writes the origin: a key, FILE:LINE, or FILE.
func (p Problem) place() string {
	switch {
	case p.Origin.Key != "":
		return p.Origin.Key
	case p.Origin.File != "" && p.Origin.Line > 0:
		return fmt.Sprintf("%s:%d", p.Origin.File, p.Origin.Line)
	}
	return p.Origin.File
}
