package nftables

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// tableName is the name of our table in each family.
const tableName = "vipd"

// natPriority is where our chains stand: before those of iptables and of most tables (dstnat, -100), so that a service is
// served though others redirect its port. sourcePriority is before srcnat, 100.
const (
	natPriority    = -105
	sourcePriority = 95
)

// Seeds of the hashes: of the client for sh and mh, and two for the 64 bits by which sticky knows a client at a frontend.
const (
	bucketSeed = 0x76697064
	stickySeed = 0x64706976
	stickyAlso = 0x70646976
)

// mostClients bounds the clients that affinity remembers in a family. New ones beyond it are served without affinity.
const mostClients = 1 << 20

// schema is the table of one family and its maps.
type schema struct {
	table nft.Table
	// frontends has the number of each frontend's chain; its elements are named by service and port. choices leads from a number
	// to the chain, which chooses a backend: the kernel checks all of a map to chains with each element that is added.
	frontends, choices *nft.Set
	// eps has the backend in each slot of a frontend.
	eps *nft.Set
	// slots has the id of the backend in each slot where choices are indirect, backends the backend of each id, and sticky the id
	// of each client.
	slots, backends, sticky *nft.Set
	// digests has the digest of each frontend, for the next process. No packet is looked up in it.
	digests *nft.Set
}

// sets are all of them.
func (s *schema) sets() []*nft.Set {
	return []*nft.Set{s.frontends, s.choices, s.eps, s.slots, s.backends, s.sticky, s.digests}
}

func newSchema(f nft.Family) *schema {
	place := func(more ...nft.Expr) nft.Concat {
		return append(nft.Concat{nft.Daddr, nft.L4proto, nft.Dport}, more...)
	}
	backend := nft.Concat{nft.Daddr, nft.Dport}
	number := nft.Numgen{Random: true, Mod: 2}
	return &schema{
		table:     nft.Table{Family: f, Name: tableName},
		frontends: &nft.Set{Name: "frontends", Key: place(), Data: nft.Priority},
		choices:   &nft.Set{Name: "choices", Key: nft.Priority, Verdict: true},
		eps:       &nft.Set{Name: "eps", Key: place(number), Data: backend, Counter: true},
		slots:     &nft.Set{Name: "slots", Key: place(number), Data: nft.Priority},
		backends:  &nft.Set{Name: "backends", Key: place(nft.Priority), Data: backend, Counter: true},
		sticky:    &nft.Set{Name: "sticky", Key: nft.Concat{number, number}, Data: nft.Priority, Size: mostClients, Timed: true},
		digests:   &nft.Set{Name: "digests", Key: place(), Data: nft.Concat{nft.Mark, nft.Mark}},
	}
}

// base is a chain that is there whatever the frontends are.
type base struct {
	nft.Chain
	rules []nft.Rule
}

// bases are the chains that lead packets to frontends, and the one that only marks.
func (s *schema) bases(mark uint32) []base {
	dispatch := []nft.Rule{{Do: []nft.Stmt{
		nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: s.frontends.Key, In: s.frontends}},
		nft.Vmap{Of: nft.Priority, In: s.choices},
	}}}
	return []base{
		{nft.Chain{Name: "prerouting", Hook: &nft.Hook{Type: nft.NAT, Point: nft.Prerouting, Priority: natPriority}}, dispatch},
		{nft.Chain{Name: "output", Hook: &nft.Hook{Type: nft.NAT, Point: nft.Output, Priority: natPriority}}, dispatch},
		{nft.Chain{Name: unserved}, []nft.Rule{{Do: []nft.Stmt{nft.ClearPriority{}, marked(mark)}}}},
	}
}

// unserved is the chain of frontends without active backends, and unservedNumber its number; clearing is there while any has
// ids, which it clears in the priority of packets.
const (
	unserved       = "unserved"
	unservedNumber = 1
	clearing       = "postrouting"
)

func marked(mark uint32) nft.Stmt { return nft.AddBits{Field: nft.CtMark, Bits: mark} }

// skeleton adds the table with all that is there whatever the frontends are. Chains that are there are written again, and
// choices leads to no others.
func (s *schema) skeleton(tx *nft.Tx, mark uint32) {
	tx.AddTable(s.table)
	for _, set := range s.sets() {
		tx.AddSet(s.table, set)
	}
	for _, c := range s.bases(mark) {
		s.write(tx, &c.Chain, c.rules)
	}
	tx.FlushSet(s.table, s.choices)
	tx.Create(s.table, s.choices, leads(unservedNumber, unserved))
}

// leads is the element of choices that leads from a number to a chain.
func leads(number uint32, chain string) nft.Elem {
	return nft.Elem{Key: nft.Bytes{}.Number(number), Goto: chain}
}

// writeChosen makes the chain of this name choose so.
func (s *schema) writeChosen(tx *nft.Tx, name string, c choice, mark uint32) {
	chain := &nft.Chain{Name: name}
	if name == clearing {
		chain.Hook = &nft.Hook{Type: nft.NAT, Point: nft.Postrouting, Priority: sourcePriority}
	}
	s.write(tx, chain, s.rules(c, mark))
}

// write makes a chain have these rules.
func (s *schema) write(tx *nft.Tx, c *nft.Chain, rules []nft.Rule) {
	tx.AddChain(s.table, c)
	tx.FlushChain(s.table, c.Name)
	for _, r := range rules {
		tx.AddRule(s.table, c.Name, r)
	}
}

// choice is how a frontend's packets get a number below n, and how long a client keeps what it got.
type choice struct {
	by     by
	n      uint32
	sticky time.Duration // 0 means no affinity
}

// indirect reports whether the number leads to the id of a backend, and that to the backend: what remembers clients keeps ids, and
// the many slots of hashes then count nothing, as each backend has one element that does.
func (c choice) indirect() bool { return c.sticky > 0 || c.by == byClient }

// by is a way to choose.
type by string

const (
	byChance by = "random"
	inTurn   by = "turn"
	byClient by = "hash"
	byNone   by = "clear" // the rules of clearing
)

// chain is the name of the chain that chooses so. Those that count are the frontend's own; all others are shared.
func (c choice) chain(k balancer.Key) string {
	if c.n == 0 {
		return unserved
	}
	name := fmt.Sprintf("%s-%d", c.by, c.n)
	if c.by == inTurn {
		name = fmt.Sprintf("%s-%s/%s/%d", c.by, plain(k.Addr), k.Proto, k.Port)
	}
	if c.sticky > 0 {
		name += fmt.Sprintf("-sticky-%d", int(c.sticky.Seconds()))
	}
	return name
}

// plain is an address without colons, which nft does not read in names.
func plain(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return hex.EncodeToString(a.AsSlice())
}

// number is the expression of the choice.
func (c choice) number() nft.Expr {
	switch c.by {
	case inTurn:
		return nft.Numgen{Mod: c.n}
	case byClient:
		return nft.Jhash{Of: nft.Saddr, Mod: c.n, Seed: bucketSeed}
	}
	return nft.Numgen{Random: true, Mod: c.n}
}

// clientHash is 32 of the 64 bits by which sticky knows a client at a frontend.
func (s *schema) clientHash(seed uint32) nft.Jhash {
	return nft.Jhash{Of: append(nft.Concat{nft.Saddr}, s.frontends.Key.(nft.Concat)...), Mod: 1<<32 - 1, Seed: seed}
}

// rules are those of the chain.
func (s *schema) rules(c choice, mark uint32) []nft.Rule {
	if c.by == byNone {
		return []nft.Rule{{Do: []nft.Stmt{nft.Bits{Field: nft.CtMark, Mask: mark, Value: mark}, nft.ClearPriority{}}}}
	}
	var rules []nft.Rule
	add := func(all ...nft.Stmt) { rules = append(rules, nft.Rule{Do: all}) }
	place := s.frontends.Key.(nft.Concat)
	at := func(e nft.Expr) nft.Concat { return append(place[:len(place):len(place)], e) }
	if !c.indirect() {
		add(nft.ClearPriority{}, marked(mark), nft.DNAT{To: nft.Lookup{Key: at(c.number()), In: s.eps}})
		return rules
	}
	client := nft.Concat{s.clientHash(stickySeed), s.clientHash(stickyAlso)}
	choose := nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: at(c.number()), In: s.slots}}
	note := nft.Update{Map: s.sticky, Key: client, Data: nft.Priority, Timeout: c.sticky}
	lead := nft.DNAT{To: nft.Lookup{Key: at(nft.Priority), In: s.backends}}
	if c.sticky == 0 {
		add(marked(mark), choose, lead)
		return rules
	}
	add(marked(mark))
	add(choose)
	add(note) // a client that is known keeps its id, and its time begins anew
	add(nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: client, In: s.sticky}})
	add(lead)
	// The backend of that id is gone or gets no new connections: the client is given another one.
	add(nft.Delete{Map: s.sticky, Key: client, Data: nft.Priority})
	add(choose)
	add(note)
	add(lead)
	return rules
}
