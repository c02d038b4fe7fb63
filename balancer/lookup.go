package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer/decode"
)

// LookupKind is a method of finding the addresses of endpoints.
type LookupKind string

// These are the kinds of lookups.
const (
	// HostLookup asks DNS for the addresses of a host: records of type A and AAAA.
	HostLookup LookupKind = "host"
	// ServiceLookup asks DNS for the hosts and ports of a service: records of type SRV.
	ServiceLookup LookupKind = "srv"
	// ProgramLookup runs a program that prints addresses.
	ProgramLookup LookupKind = "exec"
)

// Lookup identifies a lookup of endpoints' addresses by its method and its name. The zero value is
// not a lookup.
type Lookup struct {
	Kind LookupKind `json:"kind"`
	// Name is a DNS name in lower case, or a program and its arguments (see Args).
	Name string `json:"name"`
	// V4 and V6 report whether IPv4 and IPv6 addresses are needed.
	V4 bool `json:"v4,omitempty"`
	V6 bool `json:"v6,omitempty"`
}

// Compare orders by kind, name and families.
func (l Lookup) Compare(other Lookup) int {
	return cmp.Or(cmp.Compare(l.Kind, other.Kind), cmp.Compare(l.Name, other.Name),
		cmp.Compare(boolToInt(l.V4), boolToInt(other.V4)), cmp.Compare(boolToInt(l.V6), boolToInt(other.V6)))
}

// argSeparator separates the arguments of a program. Arguments can't contain it.
const argSeparator = "\x00"

// Args returns the program and its arguments.
func (l Lookup) Args() []string { return strings.Split(l.Name, argSeparator) }

// String returns the name, or the program and its arguments.
func (l Lookup) String() string { return strings.ReplaceAll(l.Name, argSeparator, " ") }

// Wants reports whether the address a is in a family that l requests. A program may print addresses
// of both families.
func (l Lookup) Wants(a netip.Addr) bool {
	return l.Kind == ProgramLookup || a.Is4() && l.V4 || a.Is6() && l.V6
}

// Replaces reports whether l can replace other after a change to a service's definition. Both must
// look up the same host name, or both must discover endpoints.
func (l Lookup) Replaces(other Lookup) bool {
	if l.Kind == HostLookup || other.Kind == HostLookup {
		return l.Kind == other.Kind && l.Name == other.Name
	}
	return true
}

// LookupID identifies a lookup of a service.
type LookupID struct {
	Service Name
	Lookup  Lookup
}

// Compare orders by service, then lookup.
func (i LookupID) Compare(other LookupID) int {
	return cmp.Or(i.Service.Compare(other.Service), i.Lookup.Compare(other.Lookup))
}

// Resolution is the result of a lookup. A published Resolution never changes.
type Resolution struct {
	// Records is the last successful answer, sorted, or empty.
	Records []LookupRecord `json:"members"`
	// Former are records from earlier answers that remain in use. See [Resolution.After].
	Former []LookupRecord `json:"former,omitempty"`
	// Failure explains why the last attempt failed. It is "" if the attempt succeeded.
	Failure string `json:"-"`
}

// Equal reports whether r and other are equal. Either may be nil.
func (r *Resolution) Equal(other *Resolution) bool {
	if r == nil || other == nil {
		return r == other
	}
	return r.Failure == other.Failure && slices.Equal(r.Records, other.Records) && slices.Equal(r.Former, other.Former)
}

// LookupRecord is an endpoint in the answer to a lookup.
type LookupRecord struct {
	Addr netip.Addr `json:"addr"`
	// Port is the port in the answer, or 0.
	Port   uint16 `json:"port,omitempty"`
	Weight int    `json:"weight,omitempty"`
	Backup bool   `json:"backup,omitempty"`
	// Host is the DNS name of Addr, or "".
	Host string `json:"host,omitempty"`
}

// Compare orders by address, port and the other fields, but backups are last.
func (m LookupRecord) Compare(other LookupRecord) int {
	return cmp.Or(cmp.Compare(boolToInt(m.Backup), boolToInt(other.Backup)), m.Addr.Compare(other.Addr),
		cmp.Compare(m.Port, other.Port), cmp.Compare(m.Weight, other.Weight), cmp.Compare(m.Host, other.Host))
}

// Discover finds endpoints of a service, in addition to its defined endpoints. Exactly one of DNS
// and Exec is set.
type Discover struct {
	// DNS is a DNS name that has SRV records.
	DNS string `toml:"dns"`
	// Exec is a program and its arguments. It prints one ADDRESS[:PORT] [weight=N] per line.
	Exec []string `toml:"exec"`
	// Interval is the maximum time between lookups. Default 10s.
	Interval time.Duration `toml:"interval" range:"1s,24h"`
	// Max limits the number of endpoints. Default 1000.
	Max int `toml:"max" range:"1,10000"`
}

// These are the defaults for Discover.
const (
	defaultDiscoverInterval = 10 * time.Second
	defaultDiscoverMax      = 1000
)

// SetDefaults sets the interval and the limit.
func (d *Discover) SetDefaults() { d.Interval, d.Max = defaultDiscoverInterval, defaultDiscoverMax }

// Example returns valid settings, for messages.
func (d *Discover) Example() string { return `{ dns = "_pg._tcp.example.org" }` }

// lookup returns the lookup that d requests for endpoints in the requested families.
func (d *Discover) lookup(v4, v6 bool) Lookup {
	if d.DNS != "" {
		return Lookup{ServiceLookup, d.DNS, v4, v6}
	}
	return Lookup{Kind: ProgramLookup, Name: strings.Join(d.Exec, argSeparator)}
}

// families returns the address families that endpoints of s may have. Addresses from pools and node
// ports may be of either family, so it returns both.
func (s *Service) families() (v4, v6 bool) {
	if len(s.Pools) > 0 || slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 }) {
		return true, true
	}
	for _, vip := range s.VIPs {
		v4, v6 = v4 || vip.Is4(), v6 || vip.Is6()
	}
	return v4, v6
}

// hostLookup returns the lookup of an endpoint's host name.
func (s *Service) hostLookup(e *Endpoint) Lookup {
	v4, v6 := s.families()
	return Lookup{HostLookup, e.Name, v4, v6}
}

// LookupsOf returns the lookups that s needs, each with the maximum time until vipd repeats it. 0
// means that the answer alone determines when to repeat the lookup.
func LookupsOf(s *Service, in *Inputs) map[Lookup]time.Duration {
	var all map[Lookup]time.Duration
	add := func(l Lookup, interval time.Duration) {
		if all == nil {
			all = map[Lookup]time.Duration{}
		}
		all[l] = interval
	}
	for _, e := range definedEndpoints(s, in) {
		if !e.Address.IsValid() {
			add(s.hostLookup(e), 0)
		}
	}
	if d := s.Discover; d != nil && !runsForeignProgram(s) {
		add(d.lookup(s.families()), d.Interval)
	}
	return all
}

// looksUp reports whether this program makes all lookups of s. Programs that only check
// definitions, such as vipctl, make no lookups.
func (in *Inputs) looksUp(s *Service) bool {
	for l := range LookupsOf(s, in) {
		if !in.Resolved.Has(LookupID{s.Name, l}) {
			return false
		}
	}
	return true
}

// runsForeignProgram reports whether s is from etcd and discovers endpoints through a program. vipd
// never runs a program that a definition in etcd names for this.
func runsForeignProgram(s *Service) bool {
	return s.Discover != nil && s.Discover.DNS == "" && fromEtcd(s)
}

// hostEntry is the address of an endpoint in a table: an IP address or a DNS name.
type hostEntry struct {
	addr netip.Addr // not valid for a name
	name string
}

func (h *hostEntry) UnmarshalText(text []byte) error {
	addr, err := decode.ParseAddr(string(text))
	if err == nil {
		*h = hostEntry{addr: addr}
		return nil
	}
	if name := strings.ToLower(strings.TrimSpace(string(text))); IsHostName(name) {
		*h = hostEntry{name: name}
		return nil
	}
	if !strings.ContainsAny(string(text), ":/") {
		return fmt.Errorf("%w, nor a DNS name", err)
	}
	return err
}

// MarshalText formats the entry in the form that UnmarshalText parses.
func (h hostEntry) MarshalText() ([]byte, error) {
	if h.name != "" {
		return []byte(h.name), nil
	}
	return h.addr.MarshalText()
}

// IsHostName reports whether name can be a host's name in DNS, in lower case. A name of digits and
// dots is a mistyped address.
func IsHostName(name string) bool {
	const maxName, maxLabel = 253, 63
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	if len(name) > maxName || strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return false
	}
	return !slices.ContainsFunc(labels, func(l string) bool {
		return len(l) == 0 || len(l) > maxLabel || l[0] == '-' || l[len(l)-1] == '-' ||
			strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != ""
	})
}
