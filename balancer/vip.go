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

// VIP holds the settings of an address, from the table [vips."ADDRESS"]. The address need not
// belong to a service.
type VIP struct {
	// Addr is the table's name.
	Addr netip.Addr `toml:"-"`
	// Origin is where the table is defined.
	Origin Origin `toml:"-"`
	VIPPolicy
	// Given lists the fields that the table sets, sorted. The other fields come from the pool that
	// contains the address, if any.
	Given []string `toml:"-"`
}

// VIPPolicy determines which hosts hold an address, and when. A pool may have a policy for its
// addresses.
type VIPPolicy struct {
	// Hold determines whether every host holds the address, or only one. Default each.
	Hold Hold `toml:"hold"`
	// Prefer names the preferred nodes, best first. If empty, the fleet chooses the node with the
	// fewest VIPs for its weight.
	Prefer []string `toml:"prefer"`
	// Group names VIPs that stay on the same host and move together. If empty, the VIP moves alone.
	Group string `toml:"group"`
	// Preempt is how long a more preferred node must be healthy before the VIP returns to it. 0
	// means that the VIP never returns.
	Preempt Preempt `toml:"preempt"`
	// Require is the condition that a host must meet to own the address. Default endpoint.
	Require Require `toml:"require"`
	// Withdraw determines when a host gives up an address that every host holds. Default never.
	Withdraw Withdraw `toml:"withdraw"`
}

// movable reports whether established connections may move to another host, because the address can
// get a new owner or a host can withdraw it.
func (p VIPPolicy) movable() bool { return p.Hold == HoldOne || p.Withdraw == WithdrawNoEndpoint }

// Hold determines which hosts hold a VIP.
type Hold string

// With HoldEach, every host has the address, but does not answer ARP for it. With HoldOne, only the
// owner has the address, on a real device, and answers ARP.
const (
	HoldEach Hold = "each"
	HoldOne  Hold = "one"
)

// Values lists the possible values.
func (Hold) Values() []string { return []string{"each", "one"} }

// Require is the condition that a host must meet to own a VIP.
type Require string

// RequireNode means that the host must be healthy. With RequireEndpoint, each service on the VIP
// must also have a usable endpoint. With RequireLocal, that endpoint must be on the host.
const (
	RequireNode     Require = "node"
	RequireEndpoint Require = "endpoint"
	RequireLocal    Require = "local"
)

// Values lists the possible values.
func (Require) Values() []string { return []string{"node", "endpoint", "local"} }

// Withdraw determines when a host gives up a VIP that every host holds.
type Withdraw string

// With WithdrawNever, a host never gives up the VIP. With WithdrawNoEndpoint, it gives up the VIP
// while no endpoint of the services on the VIP is usable.
const (
	WithdrawNever      Withdraw = "never"
	WithdrawNoEndpoint Withdraw = "no_endpoint"
)

// Values lists the possible values.
func (Withdraw) Values() []string { return []string{"never", "no_endpoint"} }

// Preempt is a duration. 0 means never.
type Preempt time.Duration

// These are the limits of Preempt. A minimum exists because a host that has just returned may fail
// again within a second.
const (
	minPreempt = time.Second
	maxPreempt = 24 * time.Hour
)

// UnmarshalText parses a duration or "never".
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
		return fmt.Errorf(`%s is out of range; use %s to %s, or "never"`, text, decode.FormatDuration(minPreempt), decode.FormatDuration(maxPreempt))
	}
	*p = Preempt(d)
	return nil
}

// MarshalText formats the value in the form that UnmarshalText parses.
func (p Preempt) MarshalText() ([]byte, error) {
	if p == 0 {
		return []byte("never"), nil
	}
	return []byte(decode.FormatDuration(time.Duration(p))), nil
}

// DefaultVIPPolicy returns the policy of an address without settings.
func DefaultVIPPolicy() VIPPolicy {
	return VIPPolicy{Hold: HoldEach, Require: RequireEndpoint, Withdraw: WithdrawNever}
}

// DecodeVIP decodes the table of the VIP whose address is name. If any problem is an error, the VIP
// is nil. DecodeService explains the parameter unknown.
func DecodeVIP(name string, fields map[string]any, where Locator, unknown Severity) (*VIP, []Problem) {
	r := newTableReader("", where, unknown)
	v := &VIP{VIPPolicy: DefaultVIPPolicy(), Origin: r.origin(""), Given: slices.Sorted(maps.Keys(fields))}
	var err error
	switch v.Addr, err = decode.ParseAddr(name); {
	case err != nil:
		r.errorf("", "%s", err)
	case v.Addr.String() != name:
		r.errorf("", "write the address as %q, the only spelling that vipd accepts", v.Addr)
	case NotUnicast(v.Addr) != "":
		r.errorf("", "is %s, which no host can hold", NotUnicast(v.Addr))
	}
	r.decode(&v.VIPPolicy, fields)
	r.checkVIPPolicy(&v.VIPPolicy, v.Addr)
	problems, ok := r.result()
	if !ok {
		return nil, problems
	}
	return v, problems
}

// EncodeVIP is the inverse of DecodeVIP. It returns the table of v with the fields that v sets.
func EncodeVIP(v *VIP) map[string]any {
	all, defaults := map[string]any{}, DefaultVIPPolicy()
	maps.Copy(all, decode.Tree(&v.VIPPolicy, &VIPPolicy{}))
	maps.Copy(all, decode.Tree(&v.VIPPolicy, &defaults))
	maps.DeleteFunc(all, func(field string, _ any) bool { return !slices.Contains(v.Given, field) })
	return all
}

// DecodeVIPPolicy decodes a pool's policy. If any problem is an error, it returns the default.
func DecodeVIPPolicy(fields map[string]any, where Locator, unknown Severity) (VIPPolicy, []Problem) {
	r := newTableReader("", where, unknown)
	p := DefaultVIPPolicy()
	r.decode(&p, fields)
	r.checkVIPPolicy(&p, netip.Addr{})
	problems, ok := r.result()
	if !ok {
		return DefaultVIPPolicy(), problems
	}
	return p, problems
}

// over returns base with the fields that v sets replaced.
func (v *VIP) over(base VIPPolicy) VIPPolicy {
	given, out := reflect.ValueOf(v.VIPPolicy), reflect.ValueOf(&base).Elem()
	for i := range out.NumField() {
		if slices.Contains(v.Given, out.Type().Field(i).Tag.Get("toml")) {
			out.Field(i).Set(given.Field(i))
		}
	}
	return base
}

// checkVIPPolicy checks the settings of addr, or of a pool if addr is not valid.
func (r *tableReader) checkVIPPolicy(p *VIPPolicy, addr netip.Addr) {
	for i, node := range p.Prefer {
		path := fmt.Sprintf("prefer[%d]", i)
		switch {
		case !isNodeName(node):
			r.errorf(path, "%q is not a node name: vipctl get nodes lists them", node)
		case slices.Contains(p.Prefer[:i], node):
			r.errorf(path, "node %s is a duplicate", node)
		}
	}
	if p.Group != "" && !isLabel(p.Group) {
		r.errorf("group", "%q is not a valid group name: group names are %s", p.Group, labelRule)
	}
	if p.Hold == HoldOne {
		if addr.IsLoopback() || addr.IsLinkLocalUnicast() {
			r.errorf("hold", "each host has %s for itself: use hold = \"each\"", addr)
		}
		if p.Withdraw != WithdrawNever {
			r.errorf("withdraw", "is for hold = \"each\"; with \"one\", use require")
		}
		if p.Preempt != 0 && len(p.Prefer) == 0 {
			r.warnf("preempt", "has no effect without prefer")
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

func isNodeName(name string) bool {
	const maxLength = 253
	return name != "" && len(name) <= maxLength && !strings.ContainsFunc(name, func(r rune) bool {
		return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r)
	})
}
