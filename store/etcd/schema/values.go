package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// What may be in etcd. More is refused: a user who may write one key must not exhaust the hosts that read it. What a text may
// come to is bounded by balancer.MaxBackends and the like.
const (
	// maxServiceText and maxEntryText bound a value, in bytes: of a service, and of everything else.
	maxServiceText = 1 << 20
	MaxEntryText   = 16 << 10
	// MaxEndpoints is how many endpoints a service may have apart from its own text, and how many overrides. The
	// oldest count.
	MaxEndpoints = 10_000
	// MaxAllocated is how many addresses of pools a service may have.
	MaxAllocated = 32
	// MaxKeys bounds all keys together.
	MaxKeys = 1_000_000
)

// DecodeValue reads the value of a key: by its kind, a *balancer.Service, Endpoint, Override, VIP or Pool, a *NodeConfig, a *balancer.Node, or the
// name of the service that has an allocated address; nil where a problem is an error. Origin is the key with its revisions.
func DecodeValue(s Subject, text []byte, origin balancer.Origin, defaults map[string]any) (any, []balancer.Problem) {
	if len(text) > s.Longest() {
		return nil, Problem(s.Of, origin, fmt.Sprintf("has %d bytes; %d are possible", len(text), s.Longest()))
	}
	if s.Kind == VIPKind {
		holder := balancer.Name(text)
		if !holder.Valid() {
			return nil, Problem("", origin, "needs the name of the service that holds the address, and nothing else; it has "+Quote(string(text)))
		}
		return holder, nil
	}
	if s.Kind == HostKind {
		return DecodeHost(text, origin)
	}
	fields, err := ParseObject(text)
	if err != nil {
		return nil, Problem(s.Of, origin, "the value "+err.Error())
	}
	where := func(string) balancer.Origin { return origin }
	switch s.Kind {
	case ServiceKind:
		return says(balancer.DecodeService(s.Of, fields, defaults, where, balancer.SeverityWarning))
	case EndpointKind:
		return says(balancer.DecodeEndpoint(s.Of, fields, where, balancer.SeverityWarning))
	case OverrideKind:
		return says(decodeOverride(s.Of, fields, origin))
	case NodeConfigKind:
		return says(DecodeNodeConfig(fields, origin))
	case PolicyKind:
		return says(balancer.DecodeVIP(s.VIP.String(), fields, where, balancer.SeverityWarning))
	case PoolKind:
		return says(decodePoolPolicy(s.OfPool, fields, origin))
	}
	return nil, Problem(s.Of, origin, "is not the key of anything that is known here")
}

// DecodeHost reads what a node publishes. Fields of newer versions are not reported: each node would report each of the others.
func DecodeHost(text []byte, origin balancer.Origin) (any, []balancer.Problem) {
	var n balancer.Node
	if err := json.Unmarshal(text, &n); err != nil {
		return nil, Problem("", origin, "the value can't be read: "+err.Error())
	}
	for i := range n.Addresses {
		n.Addresses[i] = n.Addresses[i].Unmap().WithZone("")
	}
	return &n, nil
}

// says is what was decoded, as an interface that is nil where there is none.
func says[T any](v *T, problems []balancer.Problem) (any, []balancer.Problem) {
	if v == nil {
		return nil, problems
	}
	return v, problems
}

// Longest is how many bytes the value of a key may have.
func (s Subject) Longest() int {
	if s.Kind == ServiceKind {
		return maxServiceText
	}
	return MaxEntryText
}

// CheckEntry refuses a value, other than that of a service, that is too long for those who read it.
func CheckEntry(key string, text []byte) error {
	if len(text) > MaxEntryText {
		return fmt.Errorf("%s would have %d bytes, and vipd reads %d at most: write shorter texts there", key, len(text), MaxEntryText)
	}
	return nil
}

// Problem returns one error about what a key holds.
func Problem(service balancer.Name, origin balancer.Origin, text string) []balancer.Problem {
	return []balancer.Problem{{Severity: balancer.SeverityError, Service: service, Origin: origin, Text: text}}
}

// readTable reads fields into a struct. A field that this version does not know is a warning.
func readTable(into any, fields map[string]any, service balancer.Name, origin balancer.Origin) (problems []balancer.Problem) {
	for _, p := range decode.Into(into, fields) {
		severity := balancer.SeverityError
		if p.Unknown {
			severity = balancer.SeverityWarning
		}
		problems = append(problems, balancer.Problem{Severity: severity, Service: service, Origin: origin, Field: p.Path, Text: p.Text})
	}
	return problems
}

// faulty reports whether one of the problems is an error.
func faulty(problems []balancer.Problem) bool {
	return slices.ContainsFunc(problems, func(p balancer.Problem) bool { return p.Severity == balancer.SeverityError })
}

// decodeOverride reads the table of an override. The override is nil if anything in it is an error.
func decodeOverride(service balancer.Name, fields map[string]any, origin balancer.Origin) (*balancer.Override, []balancer.Problem) {
	var o balancer.Override
	problems := readTable(&o, fields, service, origin)
	for i := range problems {
		if p := &problems[i]; p.Severity == balancer.SeverityError && (p.Field == "until" || strings.HasSuffix(p.Field, "expires")) {
			p.Text = "needs a time such as 2026-01-31T12:00:00Z"
		}
	}
	if note := o.By != "" || o.Reason != ""; !faulty(problems) && !note && !o.IsSet() {
		problems = append(problems, Problem(service, origin, "an override says nothing without weight or draining")...)
	}
	if faulty(problems) {
		return nil, problems
	}
	for _, at := range []*time.Time{&o.Until, &o.Expires, &o.WeightExpires, &o.DrainingExpires} {
		*at = at.UTC()
	}
	return &o, problems
}

// decodePoolPolicy reads what a pool says of its addresses. The pool is nil if anything of that is an error; what is wrong with
// its networks is told to who allocates, see Pools.
func decodePoolPolicy(name balancer.Name, fields map[string]any, origin balancer.Origin) (*balancer.Pool, []balancer.Problem) {
	p := &balancer.Pool{Name: name, Origin: origin}
	_ = decode.Into(p, fields) // the networks; the rest is told below
	rest := maps.Clone(fields)
	delete(rest, "cidrs")
	policy, problems := balancer.DecodeVIPPolicy(rest, func(string) balancer.Origin { return origin }, balancer.SeverityWarning)
	if faulty(problems) {
		return nil, problems
	}
	p.VIPPolicy = policy
	return p, problems
}

// Encode writes a value for people to read: on one line per entry, names sorted.
func Encode(value any) ([]byte, error) {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return nil, fmt.Errorf("encoding a value: %w", err)
	}
	return []byte(strings.TrimSuffix(text.String(), "\n")), nil
}
