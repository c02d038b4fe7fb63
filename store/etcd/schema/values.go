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

// These limits apply to etcd's contents. A user with access to a single key must not be able to
// exhaust the hosts that read it. Other limits, such as balancer.MaxBackends, apply to the
// definitions themselves.
const (
	// maxServiceText and MaxEntryText are the maximum lengths, in bytes, of a service's value and
	// of all other values.
	maxServiceText = 1 << 20
	MaxEntryText   = 16 << 10
	// MaxPendingText is the maximum length of a pending change, in bytes.
	MaxPendingText = maxServiceText
	// MaxEndpoints is the maximum number of a service's registered endpoints, and of its overrides.
	// If there are more, the oldest are used.
	MaxEndpoints = 10_000
	// MaxAllocated is the maximum number of addresses that a service gets from pools.
	MaxAllocated = 32
	// MaxKeys is the maximum total number of keys.
	MaxKeys = 1_000_000
)

// DecodeValue decodes a key's value. Depending on the kind of key, it returns a *balancer.Service,
// Endpoint, Override, VIP or Pool, a *NodeConfig, a *Pending, a *balancer.Node, or the name of the
// service that holds an allocated address. It returns nil if a problem is an error. The parameter
// origin is the key with its revisions.
func DecodeValue(s Subject, text []byte, origin balancer.Origin, defaults map[string]any) (any, []balancer.Problem) {
	if len(text) > s.Longest() {
		return nil, Problem(s.Of, origin, fmt.Sprintf("has %d bytes; at most %d are allowed", len(text), s.Longest()))
	}
	if s.Kind == VIPKind {
		holder := balancer.Name(text)
		if !holder.Valid() {
			return nil, Problem("", origin, "must contain only the name of the service that holds the address; it contains "+Quote(string(text)))
		}
		return holder, nil
	}
	if s.Kind == HostKind {
		return DecodeHost(text, origin)
	}
	if s.Kind == PendingKind {
		return asInterface(DecodePending(text, origin, defaults))
	}
	fields, err := ParseObject(text)
	if err != nil {
		return nil, Problem(s.Of, origin, "the value "+err.Error())
	}
	where := func(string) balancer.Origin { return origin }
	switch s.Kind {
	case ServiceKind:
		return asInterface(balancer.DecodeService(s.Of, fields, defaults, where, balancer.SeverityWarning))
	case EndpointKind:
		return asInterface(balancer.DecodeEndpoint(s.Of, fields, where, balancer.SeverityWarning))
	case OverrideKind:
		return asInterface(decodeOverride(s.Of, fields, origin))
	case NodeConfigKind:
		return asInterface(DecodeNodeConfig(fields, origin))
	case PolicyKind:
		return asInterface(balancer.DecodeVIP(s.VIP.String(), fields, where, balancer.SeverityWarning))
	case PoolKind:
		return asInterface(decodePoolPolicy(s.OfPool, fields, origin))
	}
	return nil, Problem(s.Of, origin, "is not a key that this vipd knows")
}

// DecodeHost decodes the addresses that a node publishes. It does not report unknown fields.
// Otherwise, each node would report every node with a newer version.
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

// asInterface converts a decoded value to an interface, which is nil if v is nil.
func asInterface[T any](v *T, problems []balancer.Problem) (any, []balancer.Problem) {
	if v == nil {
		return nil, problems
	}
	return v, problems
}

// Longest returns the maximum length of a key's value, in bytes.
func (s Subject) Longest() int {
	if s.Kind == ServiceKind || s.Kind == PendingKind {
		return maxServiceText
	}
	return MaxEntryText
}

// CheckEntry returns an error if a value is too long for its readers. It does not apply to
// services.
func CheckEntry(key string, text []byte) error {
	if len(text) > MaxEntryText {
		return fmt.Errorf("%s would have %d bytes, and vipd reads at most %d: write shorter texts", key, len(text), MaxEntryText)
	}
	return nil
}

// Problem returns a list with an error about a key.
func Problem(service balancer.Name, origin balancer.Origin, text string) []balancer.Problem {
	return []balancer.Problem{{Severity: balancer.SeverityError, Service: service, Origin: origin, Text: text}}
}

// readTable decodes fields into a struct. Fields that this version does not know cause warnings.
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

func faulty(problems []balancer.Problem) bool {
	return slices.ContainsFunc(problems, func(p balancer.Problem) bool { return p.Severity == balancer.SeverityError })
}

// decodeOverride decodes an override. It returns nil if any part of it is an error.
func decodeOverride(service balancer.Name, fields map[string]any, origin balancer.Origin) (*balancer.Override, []balancer.Problem) {
	var o balancer.Override
	problems := readTable(&o, fields, service, origin)
	for i := range problems {
		if p := &problems[i]; p.Severity == balancer.SeverityError && (p.Field == "until" || strings.HasSuffix(p.Field, "expires")) {
			p.Text = "needs a time such as 2026-01-31T12:00:00Z"
		}
	}
	if note := o.By != "" || o.Reason != ""; !faulty(problems) && !note && !o.IsSet() {
		problems = append(problems, Problem(service, origin, "an override needs weight or draining")...)
	}
	if faulty(problems) {
		return nil, problems
	}
	for _, at := range []*time.Time{&o.Until, &o.Expires, &o.WeightExpires, &o.DrainingExpires} {
		*at = at.UTC()
	}
	return &o, problems
}

// decodePoolPolicy decodes the settings for a pool's addresses. It returns nil if a setting has an
// error. Mistakes in the pool's networks are reported when an address is allocated.
func decodePoolPolicy(name balancer.Name, fields map[string]any, origin balancer.Origin) (*balancer.Pool, []balancer.Problem) {
	p := &balancer.Pool{Name: name, Origin: origin}
	_ = decode.Into(p, fields) // decodes the networks; other mistakes are reported below
	rest := maps.Clone(fields)
	delete(rest, "cidrs")
	policy, problems := balancer.DecodeVIPPolicy(rest, func(string) balancer.Origin { return origin }, balancer.SeverityWarning)
	if faulty(problems) {
		return nil, problems
	}
	p.VIPPolicy = policy
	return p, problems
}

// Encode encodes a value for human readers: indented, with sorted names.
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
