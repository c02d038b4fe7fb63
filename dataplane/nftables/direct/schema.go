package direct

import (
	"fmt"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

const (
	// tableName is the table's name, and trialName is the name of the table in a trial.
	tableName, trialName = "vipd", "vipd-trial"
	// slotCount is the number of slots of a frontend.
	slotCount = 1024
	hashSeed  = 0x76697064
	// arriving is the chain to which all devices' chains lead.
	arriving = "arriving"
)

// device is a network device.
type device struct {
	name  string
	index uint32
}

// family holds the maps and sets of an IP family.
type family struct {
	nft.TableFamily
	// services maps frontends to chains, and errors maps frontends to chains for ICMP errors.
	services, errors *nft.Set
	// slots maps slots to endpoints. counted has the same entries for packets that open
	// connections, and counts these packets. fragments maps slots to endpoints for fragments, which
	// have no ports.
	slots, counted, fragments *nft.Set
	// allowed holds the clients of restricted frontends.
	allowed *nft.Set
}

func newFamily(f nft.TableFamily, suffix string) *family {
	field := func(x nft.Field) nft.Expr { return nft.As{Family: f, Field: x} }
	place := func(more ...nft.Expr) nft.Concat {
		return append(nft.Concat{field(nft.Daddr), nft.L4proto, nft.Dport}, more...)
	}
	number := nft.Numgen{Random: true, Mod: 2}
	return &family{
		TableFamily: f,
		services:    &nft.Set{Name: "services" + suffix, Key: place(), Verdict: true},
		errors:      &nft.Set{Name: "errors" + suffix, Key: place(), Verdict: true},
		slots:       &nft.Set{Name: "slots" + suffix, Key: place(number), Data: field(nft.Daddr)},
		counted:     &nft.Set{Name: "counted" + suffix, Key: place(number), Data: field(nft.Daddr), Counter: true},
		fragments:   &nft.Set{Name: "fragments" + suffix, Key: nft.Concat{field(nft.Daddr), nft.L4proto, number}, Data: field(nft.Daddr)},
		allowed:     &nft.Set{Name: "allowed" + suffix, Key: place(field(nft.Saddr)), Interval: true},
	}
}

func (y *family) sets() []*nft.Set {
	return []*nft.Set{y.services, y.errors, y.slots, y.counted, y.fragments, y.allowed}
}

func (y *family) field(x nft.Field) nft.Expr { return nft.As{Family: y.TableFamily, Field: x} }

func (y *family) etherType() nft.EtherType {
	if y.TableFamily == nft.IPv6 {
		return nft.EtherIPv6
	}
	return nft.EtherIPv4
}

// chain describes a chain that forwards the packets of frontends. It is comparable.
type chain struct {
	family nft.TableFamily
	proto  balancer.Protocol // empty for ICMP errors
	// byPort reports whether the hash includes the client's port.
	byPort              bool
	closing, restricted bool
}

// String returns the chain's name.
func (c chain) String() string {
	proto, by, version := string(c.proto), "client", 4
	if c.proto == "" {
		proto = "errors"
	}
	if c.byPort {
		by = "port"
	}
	if c.family == nft.IPv6 {
		version = 6
	}
	name := fmt.Sprintf("%s-%s-%d", proto, by, version)
	if c.closing {
		name += "-closing"
	}
	if c.restricted {
		name += "-restricted"
	}
	return name
}

func (c chain) errors() chain { return chain{family: c.family, byPort: c.byPort} }

// needs returns c and the other chains that must exist with it: the chain for ICMP errors, and, for
// a restricted chain, the unrestricted chain to which it leads.
func (c chain) needs() []chain {
	all := []chain{c, c.errors()}
	if c.restricted {
		open := c
		open.restricted = false
		all = append(all, open)
	}
	return all
}

// rules returns the rules of chain c, which may forward packets to devices.
func (y *family) rules(c chain, devices []device) (rules []nft.Rule) {
	add := func(do ...nft.Stmt) { rules = append(rules, nft.Rule{Do: do}) }
	if c.proto == "" {
		return y.errorRules(c, devices)
	}
	if c.restricted {
		open := c
		open.restricted = false
		add(nft.In{Of: y.allowed.Key, Set: y.allowed}, nft.Goto(open.String()))
		return rules
	}
	var opens []nft.Stmt // matches packets that open connections
	switch c.proto {
	case balancer.TCP:
		opens = append(opens, nft.Flags{Value: nft.SYN, Mask: nft.SYN | nft.ACK})
	case balancer.SCTP:
		opens = append(opens, nft.OpensSCTP{})
	}
	if c.closing {
		add(append(opens, nft.Accept)...)
	}
	var client nft.Expr = y.field(nft.Saddr)
	if c.byPort {
		client = nft.Concat{client, nft.Sport}
	}
	for _, d := range devices {
		key := nft.Concat{y.field(nft.Daddr), nft.L4proto, nft.Dport, slotOf(client, d)}
		if !c.closing {
			add(append(opens[:len(opens):len(opens)], y.forward(key, y.counted, d))...)
		}
		if len(opens) > 0 {
			add(y.forward(key, y.slots, d))
		}
	}
	return rules
}

// slotOf returns the expression for a client's slot in the elements for device d. Each device has
// its own range of slot numbers.
func slotOf(client nft.Expr, d device) nft.Expr {
	return nft.Jhash{Of: client, Mod: slotCount, Seed: hashSeed, Offset: d.index * slotCount}
}

func (y *family) forward(key nft.Concat, in *nft.Set, d device) nft.Stmt {
	return nft.Fwd{Family: y.TableFamily, To: nft.Lookup{Key: key, In: in}, Name: d.name, Index: d.index}
}

// inner holds offsets in an ICMP error, which contains the start of the packet that caused it. An
// endpoint sent that packet to a client.
type inner struct{ proto, client, size, ports uint32 }

func (y *family) inner() inner {
	if y.TableFamily == nft.IPv6 {
		return inner{proto: 8 + 6, client: 8 + 24, size: 16, ports: 8 + 40}
	}
	return inner{proto: 8 + 9, client: 8 + 16, size: 4, ports: 8 + 20}
}

func at(offset, size uint32) nft.Raw {
	return nft.Raw{Header: nft.TransportHeader, Offset: offset, Size: size}
}

// errorPlace returns the expression for the key of the frontend whose endpoint sent the inner
// packet. It uses the error's destination as the VIP, not the source of the inner packet, so a
// forged inner source has no effect. Otherwise the endpoint would send such an error back to this
// host.
func (y *family) errorPlace() nft.Concat {
	i := y.inner()
	return nft.Concat{y.field(nft.Daddr), at(i.proto, 1), at(i.ports, 2)}
}

func (y *family) errorRules(c chain, devices []device) (rules []nft.Rule) {
	i := y.inner()
	var client nft.Expr = at(i.client, i.size)
	if c.byPort {
		client = nft.Concat{client, at(i.ports+2, 2)}
	}
	for _, d := range devices {
		rules = append(rules, nft.Rule{Do: []nft.Stmt{y.forward(append(y.errorPlace(), slotOf(client, d)), y.slots, d)}})
	}
	return rules
}

func (y *family) arrivingRules(devices []device) (rules []nft.Rule) {
	add := func(do ...nft.Stmt) { rules = append(rules, nft.Rule{Do: append([]nft.Stmt{y.etherType()}, do...)}) }
	network := func(offset, size uint32) nft.Raw {
		return nft.Raw{Header: nft.NetworkHeader, Offset: offset, Size: size}
	}
	hopLimit := network(8, 1)
	if y.TableFamily == nft.IPv6 {
		hopLimit = network(7, 1)
	}
	for _, last := range []byte{0, 1} { // old kernels would decrease 0 to 255
		add(nft.Equal{Of: hopLimit, Value: []byte{last}}, nft.Accept)
	}
	add(nft.Vmap{Of: y.services.Key, In: y.services})
	later := []nft.Stmt{nft.AnyBit{Of: network(6, 2), Mask: []byte{0x1f, 0xff}}} // matches all fragments except the first
	icmp, tooBig := uint32(1), byte(3)                                           // destination unreachable
	if y.TableFamily == nft.IPv6 {
		const fragment = 44
		later = []nft.Stmt{nft.Equal{Of: network(6, 1), Value: []byte{fragment}}, nft.AnyBit{Of: network(42, 2), Mask: []byte{0xff, 0xf8}}}
		icmp, tooBig = 58, 2
	}
	for _, d := range devices {
		key := nft.Concat{y.field(nft.Daddr), nft.L4proto, slotOf(y.field(nft.Saddr), d)}
		add(append(later, y.forward(key, y.fragments, d))...)
	}
	add(nft.Is{Field: nft.L4proto, Value: icmp}, nft.Equal{Of: at(0, 1), Value: []byte{tooBig}}, nft.Vmap{Of: y.errorPlace(), In: y.errors})
	return rules
}
