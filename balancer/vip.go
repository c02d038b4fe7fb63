package balancer

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"vipd/balancer/decode"
)

// VIP is what users write of one address: the table [vips."ADDRESS"]. A VIP may have settings and no service.
type VIP struct {
	// Addr is the table's name.
	Addr netip.Addr `toml:"-"`
	// Origin is where the table was read.
	Origin Origin `toml:"-"`
	VIPPolicy
	// Given are the fields that the table sets, sorted. The others are those of the pool that has the address, if one does.
	Given []string `toml:"-"`
}

// VIPPolicy says which hosts hold an address, and when. A pool may carry one for the addresses that it gives.
type VIPPolicy struct {
	// Hold says whether every host holds the address, or one alone. Default each.
	Hold Hold `toml:"hold"`
	// Prefer names the nodes that are to have the address, best first. Empty: the one with the fewest VIPs for its weight.
	Prefer []string `toml:"prefer"`
	// Group names VIPs that are always on one host, and move together; "" means the VIP moves alone.
	Group string `toml:"group"`
	// Preempt is how long a better one of Prefer has to be well before the VIP goes back to it; 0 means never.
	Preempt Preempt `toml:"preempt"`
	// Require is what a host needs to own the address. Default endpoint.
	Require Require `toml:"require"`
	// Withdraw says when a host that holds the address for itself gives it up. Default never.
	Withdraw Withdraw `toml:"withdraw"`
}

// wanders reports whether what clients send to the address comes to another host once it has been to this one: to its next owner, or to
// where routers lead it after a host has withdrawn it.
func (p VIPPolicy) wanders() bool { return p.Hold == HoldOne || p.Withdraw == WithdrawNoEndpoint }

// Hold is which hosts hold a VIP.
type Hold string

// The ways to hold: each host holds the address for itself and is silent about it, or one owner on a real device answers for it.
const (
	HoldEach Hold = "each"
	HoldOne  Hold = "one"
)

// Values lists what users may write.
func (Hold) Values() []string { return []string{"each", "one"} }

// Require is what a host needs to own a VIP.
type Require string

// The requirements: that the host is well, that it sees a usable endpoint of each service on the VIP, or that it has one itself.
const (
	RequireNode     Require = "node"
	RequireEndpoint Require = "endpoint"
	RequireLocal    Require = "local"
)

// Values lists what users may write.
func (Require) Values() []string { return []string{"node", "endpoint", "local"} }

// Withdraw is when a host gives up a VIP that each host holds.
type Withdraw string

// The choices: never, or while no endpoint of the services on the VIP is usable.
const (
	WithdrawNever      Withdraw = "never"
	WithdrawNoEndpoint Withdraw = "no_endpoint"
)

// Values lists what users may write.
func (Withdraw) Values() []string { return []string{"never", "no_endpoint"} }

// Preempt is a time, or never, which is 0.
type Preempt time.Duration

// The bounds of Preempt: within less than a second a host that has come back may be gone again.
const (
	minPreempt = time.Second
	maxPreempt = 24 * time.Hour
)

// UnmarshalText reads a duration or "never".
func (p *Preempt) UnmarshalText(text []byte) error {
	if string(text) == "never" {
		*p = 0
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf(`%q is neither "never" nor a duration, such as "30s" or "5m"`, text)
	}
	if d < minPreempt || d > maxPreempt {
		return fmt.Errorf(`%s is out of range; %s to %s and "never" are possible`, text, decode.FormatDuration(minPreempt), decode.FormatDuration(maxPreempt))
	}
	*p = Preempt(d)
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (p Preempt) MarshalText() ([]byte, error) {
	if p == 0 {
		return []byte("never"), nil
	}
	return []byte(decode.FormatDuration(time.Duration(p))), nil
}

// DefaultVIPPolicy is that of an address without settings.
func DefaultVIPPolicy() VIPPolicy {
	return VIPPolicy{Hold: HoldEach, Require: RequireEndpoint, Withdraw: WithdrawNever}
}

// DecodeVIP reads the settings of the address that is written as name. Unknown is as in DecodeService. The settings are nil if
// anything is an error.
func DecodeVIP(name string, fields map[string]any, where Locator, unknown Severity) (*VIP, []Problem) {
	r := newReading("", where, unknown)
	v := &VIP{VIPPolicy: DefaultVIPPolicy(), Origin: r.at(""), Given: slices.Sorted(maps.Keys(fields))}
	var err error
	switch v.Addr, err = decode.ParseAddr(name); {
	case err != nil:
		r.errorf("", "%s", err)
	case v.Addr.String() != name:
		r.errorf("", "the address must be written as %q here: only one table may be about an address", v.Addr)
	case notUnicast(v.Addr) != "":
		r.errorf("", "is %s, which no host can hold", notUnicast(v.Addr))
	}
	r.decode(&v.VIPPolicy, fields)
	r.checkVIPPolicy(&v.VIPPolicy, v.Addr)
	problems, ok := r.result()
	if !ok {
		return nil, problems
	}
	return v, problems
}

// EncodeVIP is the inverse of DecodeVIP: the table of v, with the fields that it sets.
func EncodeVIP(v *VIP) map[string]any {
	all, defaults := map[string]any{}, DefaultVIPPolicy()
	maps.Copy(all, decode.Tree(&v.VIPPolicy, &VIPPolicy{}))
	maps.Copy(all, decode.Tree(&v.VIPPolicy, &defaults))
	maps.DeleteFunc(all, func(field string, _ any) bool { return !slices.Contains(v.Given, field) })
	return all
}

// DecodeVIPPolicy reads what a pool says of its addresses. It is the default where anything is an error.
func DecodeVIPPolicy(fields map[string]any, where Locator, unknown Severity) (VIPPolicy, []Problem) {
	r := newReading("", where, unknown)
	p := DefaultVIPPolicy()
	r.decode(&p, fields)
	r.checkVIPPolicy(&p, netip.Addr{})
	problems, ok := r.result()
	if !ok {
		return DefaultVIPPolicy(), problems
	}
	return p, problems
}

// over returns the settings of v, with those of base for what v does not set.
func (v *VIP) over(base VIPPolicy) VIPPolicy {
	given, out := reflect.ValueOf(v.VIPPolicy), reflect.ValueOf(&base).Elem()
	for i := range out.NumField() {
		if slices.Contains(v.Given, out.Type().Field(i).Tag.Get("toml")) {
			out.Field(i).Set(given.Field(i))
		}
	}
	return base
}

// checkVIPPolicy checks the settings of addr, which is invalid for those of a pool.
func (r *reading) checkVIPPolicy(p *VIPPolicy, addr netip.Addr) {
	for i, node := range p.Prefer {
		path := fmt.Sprintf("prefer[%d]", i)
		switch {
		case !isNodeName(node):
			r.errorf(path, "%q names no node: write its name as \"vipctl get nodes\" shows it", node)
		case slices.Contains(p.Prefer[:i], node):
			r.errorf(path, "the node %s is there already", node)
		}
	}
	if p.Group != "" && !isLabel(p.Group) {
		r.errorf("group", "%q is not possible: names of groups are %s", p.Group, labelRule)
	}
	if p.Hold == HoldOne {
		if addr.IsLoopback() || addr.IsLinkLocalUnicast() {
			r.errorf("hold", "%s is an address that each host has for itself: only \"each\" is possible", addr)
		}
		if p.Withdraw != WithdrawNever {
			r.errorf("withdraw", "is for VIPs that each host holds; with hold = \"one\" the owner gives a VIP away by require")
		}
		if p.Preempt != 0 && len(p.Prefer) == 0 {
			r.warnf("preempt", "has no effect without prefer, which names the hosts that are better")
		}
		return
	}
	for _, f := range []struct {
		field string
		set   bool
	}{{"prefer", len(p.Prefer) > 0}, {"group", p.Group != ""}, {"preempt", p.Preempt != 0}, {"require", p.Require != RequireEndpoint}} {
		if f.set {
			r.warnf(f.field, "has no effect without hold = \"one\": each host holds the VIP")
		}
	}
}

// isNodeName reports whether a node can have this name.
func isNodeName(name string) bool {
	const longest = 253
	return name != "" && len(name) <= longest && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	})
}
