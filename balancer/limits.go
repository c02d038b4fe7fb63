package balancer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits protect a service from its clients. Each node counts only its own connections, separately
// for IPv4 and IPv6. The counts cover all VIPs and ports of the service. Zero means no limit.
type Limits struct {
	// Connections limits the open connections of all clients together.
	Connections int `toml:"connections" range:"0,65535"`
	// SourceConnections limits the open connections of each source, which is a network of clients
	// (see SourcePrefix).
	SourceConnections int `toml:"source_connections" range:"0,65535"`
	// SourceRate limits how often each source may open connections.
	SourceRate Rate `toml:"source_rate"`
	// SourcePrefix holds the prefix lengths of sources, for IPv4 and IPv6. Default [32, 64],
	// because an IPv6 client usually has a /64 network to itself.
	SourcePrefix []int `toml:"source_prefix" range:"1,128"`
	// Over determines how a connection over a limit is treated. By default, the mode drops the
	// connection if it can.
	Over OverLimit `toml:"over"`
}

// SetDefaults sets the default prefix lengths.
func (l *Limits) SetDefaults() { l.SourcePrefix = []int{32, 64} }

// Example returns valid limits, for messages.
func (l *Limits) Example() string { return `{ source_rate = "50/s" }` }

// OverLimit determines how a connection over a limit is treated.
type OverLimit string

// DropOver sends nothing. RejectOver sends a TCP reset or an ICMP port unreachable.
const (
	DropOver   OverLimit = "drop"
	RejectOver OverLimit = "reject"
)

// Values lists the possible values.
func (OverLimit) Values() []string { return []string{string(DropOver), string(RejectOver)} }

// Rate is a number of connections in a period: a second, a minute or an hour. A source may also
// open that many connections in one burst. The zero value means no limit.
type Rate struct {
	N   int
	Per time.Duration
}

// maxRate is the maximum number of connections in a rate.
const maxRate = 1_000_000

// ratePeriod is a period that a Rate can have, with the letter that stands for it in text.
type ratePeriod struct {
	letter string
	per    time.Duration
}

func ratePeriods() []ratePeriod {
	return []ratePeriod{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}}
}

// String formats the rate as 50/s.
func (r Rate) String() string {
	for _, p := range ratePeriods() {
		if p.per == r.Per {
			return fmt.Sprintf("%d/%s", r.N, p.letter)
		}
	}
	return ""
}

// MarshalText formats the rate like String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses a rate. An empty text means no limit.
func (r *Rate) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*r = Rate{}
		return nil
	}
	number, letter, _ := strings.Cut(string(text), "/")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	for _, p := range ratePeriods() {
		if p.letter != strings.TrimSpace(letter) || err != nil {
			continue
		}
		if n < 1 || n > maxRate {
			return fmt.Errorf("%q is out of range; use 1 to %d connections", text, maxRate)
		}
		*r = Rate{n, p.per}
		return nil
	}
	return fmt.Errorf(`%q is not a rate, such as "50/s", "100/m" or "1000/h"`, text)
}

// ClientLimits are the limits of a frontend. ClientLimits is comparable. All frontends of a service
// and address family have equal limits, except frontends with direct forwarding. Zero means no
// limit.
type ClientLimits struct {
	Connections, SourceConnections int
	SourceRate                     Rate
	// SourcePrefix is the prefix length of sources.
	SourcePrefix int
	Over         OverLimit
}

// IsZero reports whether there are no limits.
func (l ClientLimits) IsZero() bool { return l == ClientLimits{} }

// String lists the limits and how they apply, such as "source_rate 50/s, source_prefix 24, over
// drop".
func (l ClientLimits) String() string {
	var parts []string
	add := func(set bool, name string, value any) {
		if set {
			parts = append(parts, fmt.Sprint(name, " ", value))
		}
	}
	add(l.Connections > 0, "connections", l.Connections)
	add(l.SourceConnections > 0, "source_connections", l.SourceConnections)
	add(l.SourceRate.N > 0, "source_rate", l.SourceRate)
	add(l.SourcePrefix > 0, "source_prefix", l.SourcePrefix)
	add(l.Over != "", "over", l.Over)
	return strings.Join(parts, ", ")
}

func (f *Frontend) setLimits(l *Limits) {
	if l == nil {
		return
	}
	f.Limits = ClientLimits{Connections: l.Connections, SourceConnections: l.SourceConnections, SourceRate: l.SourceRate, Over: l.Over}
	if !f.Limits.limitsSources() {
		return
	}
	bits := f.Addr.BitLen()
	f.Limits.SourcePrefix = bits
	if len(l.SourcePrefix) == 2 {
		f.Limits.SourcePrefix = min(l.SourcePrefix[bits/128], bits)
	}
}

func (l ClientLimits) limitsSources() bool { return l.SourceConnections > 0 || l.SourceRate.N > 0 }

func (l ClientLimits) limits() bool { return l.Connections > 0 || l.limitsSources() }

// fitLimits clears the limits that f can't enforce, and limit settings without effect. A node sees
// only one direction of direct connections, so it can't count them. It still recognizes the TCP
// segments that open them, so it can limit their rate.
func (f *Frontend) fitLimits() {
	if f.Forward.Direct() {
		f.Limits.Connections, f.Limits.SourceConnections = 0, 0
		if f.Proto != TCP {
			f.Limits.SourceRate = Rate{}
		}
	}
	if !f.Limits.limits() {
		f.Limits = ClientLimits{}
	}
	if !f.Limits.limitsSources() {
		f.Limits.SourcePrefix = 0
	}
}

func (r *tableReader) checkLimits(l *Limits) {
	if l == nil || r.isBroken("limits") {
		return
	}
	switch {
	case r.isBroken("limits.source_prefix"):
	case len(l.SourcePrefix) != 2:
		r.errorf("limits.source_prefix", "needs two prefix lengths, for IPv4 and IPv6, such as [32, 64], the default")
	case l.SourcePrefix[0] > 32:
		r.errorf(element("limits.source_prefix", 0, ""), "%d is out of range; use 1 to 32 for IPv4", l.SourcePrefix[0])
	}
	set := ClientLimits{Connections: l.Connections, SourceConnections: l.SourceConnections, SourceRate: l.SourceRate}
	switch byDefault := (&Limits{}); {
	case !set.limits():
		r.warnf("limits", "has no effect: set connections, source_connections or source_rate")
	case !set.limitsSources():
		if byDefault.SetDefaults(); !slices.Equal(l.SourcePrefix, byDefault.SourcePrefix) {
			r.warnf("limits.source_prefix", "has no effect without source_connections or source_rate")
		}
	}
}

func (u *compiledService) reportLimits(c *Capabilities, nearest func(field, what, instead string)) {
	l := u.service.Limits
	if l == nil {
		return
	}
	has := func(proto Protocol) bool {
		return slices.ContainsFunc(u.service.Ports, func(p Port) bool { return p.Protocol == proto })
	}
	switch {
	case !c.ResetsOverLimit:
	case l.Over == DropOver && has(TCP):
		nearest("limits.over", "leave TCP connections over a limit without an answer", "it resets them")
	case l.Over == RejectOver && has(UDP):
		nearest("limits.over", "reject datagrams over a limit", "it drops them")
	}
	forward := u.service.Forward
	if !slices.Contains(c.Untranslated, forward) || c.Stateless {
		return
	}
	if n := cmp.Or(l.Connections, l.SourceConnections); n > 0 {
		field := "limits.connections"
		if l.Connections == 0 {
			field = "limits.source_connections"
		}
		nearest(field, "count connections that it forwards by "+string(forward), "only source_rate limits them")
	}
	for i := range u.service.Ports {
		if p := &u.service.Ports[i]; p.Protocol != TCP && l.SourceRate.N > 0 {
			nearest("limits.source_rate", fmt.Sprintf("distinguish new connections to port %s/%s when it forwards by %s", p.Port, p.Protocol, forward), "the port has no limit")
		}
	}
}
