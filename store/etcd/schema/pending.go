package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
)

// Pending is a change to services that is in effect before it is confirmed. Its key is
// PREFIX/pending.
type Pending struct {
	// By is the author of the change, and Ended is the user who ended it.
	By    string `json:"by,omitempty"`
	Ended string `json:"ended,omitempty"`
	// Since is when the change started, and Until is when nodes revert it, each by its own clock.
	// An abort sets Until to Since.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Confirmed reports whether the change's services have been written for all nodes.
	Confirmed bool `json:"confirmed,omitempty"`
	// On selects the nodes that the change is for (see [Pending.Covers]).
	On []string `json:"on,omitempty"`
	// Services holds the changed services by name.
	Services map[balancer.Name]*PendingService `json:"services"`
	// Unread holds the problems of services that this version can't decode. These services are
	// missing from Services.
	Unread []balancer.Problem `json:"-"`
}

// PendingService is a service's pending definition.
type PendingService struct {
	Fields map[string]any `json:"fields"`
	// Base is the revision of the definition that this one replaces, or 0 for a new service.
	Base int64 `json:"base,omitempty"`
	// Service is the service that the fields define.
	Service *balancer.Service `json:"-"`
}

// Live reports whether the change is still pending at a time. An aborted change ends at the time
// when it started, so differences between the hosts' clocks do not matter.
func (p *Pending) Live(now time.Time) bool {
	return !p.Confirmed && p.Since.Before(p.Until) && now.Before(p.Until)
}

// Covers reports whether the change is for a node. On must be empty, or contain the node's name,
// "zone=ZONE" with its zone, or a percentage such as "10%". A percentage selects nodes by a hash of
// their names, so a larger percentage includes the nodes of a smaller percentage.
func (p *Pending) Covers(node, zone string) bool {
	if len(p.On) == 0 {
		return true
	}
	return slices.ContainsFunc(p.On, func(on string) bool {
		if share, ok := strings.CutSuffix(on, "%"); ok {
			limit, err := strconv.ParseFloat(share, 64)
			return err == nil && position(node) < limit
		}
		if of, ok := strings.CutPrefix(on, "zone="); ok {
			return of == zone
		}
		return on == node
	})
}

// position returns a number from 0 to less than 100 that depends only on the name.
func position(node string) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(node)) // never fails
	x := h.Sum64()
	x ^= x >> 32 // the hashes of similar names differ mostly in low bits
	x *= 0x9e3779b97f4a7c15
	return float64(x>>40) / (1 << 24) * 100
}

// ParseScope parses a change's scope: node names, zone=ZONE and percentages, separated by commas.
func ParseScope(text string) (on []string, err error) {
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		share, percent := strings.CutSuffix(part, "%")
		zone, zoned := strings.CutPrefix(part, "zone=")
		limit, notNumber := strconv.ParseFloat(share, 64)
		switch {
		case percent && (notNumber != nil || !(limit > 0 && limit <= 100)):
			return nil, fmt.Errorf("%q is not a percentage above 0 and up to 100", part)
		case percent:
		case zoned && zone == "":
			return nil, errors.New("zone= needs the name of a zone")
		case !zoned:
			if err := CheckNode(part); err != nil {
				return nil, err
			}
		}
		on = append(on, part)
	}
	return on, nil
}

// DecodePending decodes the key's value. Services with an error are missing from Services. The
// problems include warnings about the remaining services.
func DecodePending(text []byte, origin balancer.Origin, defaults map[string]any) (*Pending, []balancer.Problem) {
	var raw struct {
		Pending
		Services map[balancer.Name]struct {
			Fields json.RawMessage `json:"fields"`
			Base   int64           `json:"base"`
		} `json:"services"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, Problem("", origin, "the value can't be read: "+err.Error())
	}
	p := raw.Pending
	p.Services = map[balancer.Name]*PendingService{}
	var problems []balancer.Problem
	for _, name := range slices.Sorted(maps.Keys(raw.Services)) {
		s := raw.Services[name]
		fields, err := ParseObject(s.Fields)
		if err != nil {
			found := Problem(name, origin, "the pending text "+err.Error())
			problems, p.Unread = append(problems, found...), append(p.Unread, found...)
			continue
		}
		service, found := balancer.DecodeService(name, fields, defaults, func(string) balancer.Origin { return origin }, balancer.SeverityWarning)
		problems = append(problems, found...)
		if service != nil {
			p.Services[name] = &PendingService{Fields: fields, Base: s.Base, Service: service}
		} else {
			p.Unread = append(p.Unread, found...)
		}
	}
	return &p, problems
}
