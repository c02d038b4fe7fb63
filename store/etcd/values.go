package etcd

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
	maxEntryText   = 16 << 10
	// MaxEndpoints is how many endpoints a service may have apart from its own text, and how many overrides. The
	// oldest count.
	MaxEndpoints = 10_000
	// MaxAllocated is how many addresses of pools a service may have.
	MaxAllocated = 32
	// maxKeys bounds all keys together.
	maxKeys = 1_000_000
)

// decodeValue reads the value of a key: by its kind, a *balancer.Service, Endpoint, Override, VIP or Pool, a *NodeConfig, a *balancer.Node, or the
// name of the service that has an allocated address; nil where a problem is an error. Origin is the key with its revisions.
func decodeValue(s subject, text []byte, origin balancer.Origin, defaults map[string]any) (any, []balancer.Problem) {
	if len(text) > s.longest() {
		return nil, problem(s.of, origin, fmt.Sprintf("has %d bytes; %d are possible", len(text), s.longest()))
	}
	if s.kind == vipKind {
		holder := balancer.Name(text)
		if !holder.Valid() {
			return nil, problem("", origin, "needs the name of the service that holds the address, and nothing else; it has "+quote(string(text)))
		}
		return holder, nil
	}
	if s.kind == hostKind {
		return decodeHost(text, origin)
	}
	fields, err := ParseObject(text)
	if err != nil {
		return nil, problem(s.of, origin, "the value "+err.Error())
	}
	where := func(string) balancer.Origin { return origin }
	switch s.kind {
	case serviceKind:
		return says(balancer.DecodeService(s.of, fields, defaults, where, balancer.SeverityWarning))
	case endpointKind:
		return says(balancer.DecodeEndpoint(s.of, fields, where, balancer.SeverityWarning))
	case overrideKind:
		return says(decodeOverride(s.of, fields, origin))
	case nodeConfigKind:
		return says(decodeNodeConfig(fields, origin))
	case policyKind:
		return says(balancer.DecodeVIP(s.vip.String(), fields, where, balancer.SeverityWarning))
	case poolKind:
		return says(decodePoolPolicy(s.ofPool, fields, origin))
	}
	return nil, problem(s.of, origin, "is not the key of anything that is known here")
}

// decodeHost reads what a node publishes. Fields of newer versions are not reported: each node would report each of the others.
func decodeHost(text []byte, origin balancer.Origin) (any, []balancer.Problem) {
	var n balancer.Node
	if err := json.Unmarshal(text, &n); err != nil {
		return nil, problem("", origin, "the value can't be read: "+err.Error())
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

// longest is how many bytes the value of a key may have.
func (s subject) longest() int {
	if s.kind == serviceKind {
		return maxServiceText
	}
	return maxEntryText
}

// checkEntry refuses a value, other than that of a service, that is too long for those who read it.
func checkEntry(key string, text []byte) error {
	if len(text) > maxEntryText {
		return fmt.Errorf("%s would have %d bytes, and vipd reads %d at most: write shorter texts there", key, len(text), maxEntryText)
	}
	return nil
}

func problem(service balancer.Name, origin balancer.Origin, text string) []balancer.Problem {
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
	if note := o.By != "" || o.Reason != ""; !faulty(problems) && !note && !o.Says() {
		problems = append(problems, problem(service, origin, "an override says nothing without weight or draining")...)
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

// encode writes a value for people to read: on one line per entry, names sorted.
func encode(value any) ([]byte, error) {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return nil, fmt.Errorf("encoding a value: %w", err)
	}
	return []byte(strings.TrimSuffix(text.String(), "\n")), nil
}
