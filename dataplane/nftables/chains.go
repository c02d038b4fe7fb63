package nftables

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// tableName is the name of vipd's table in each family.
const tableName = "vipd"

// natPriority is the priority of vipd's chains. They precede the chains of iptables and most other
// tables (dstnat, -100), so a service works even if other programs redirect its port.
// sourcePriority precedes srcnat, 100.
const (
	natPriority    = -105
	sourcePriority = 95
)

// These are the seeds of the hashes. The schedulers sh and mh use bucketSeed to choose a slot by
// the client's address. The other two seeds give the 64 bits that identify a client in the map
// sticky.
const (
	bucketSeed = 0x76697064
	stickySeed = 0x64706976
	stickyAlso = 0x70646976
)

// maxClients is the maximum number of clients that affinity remembers in a family. Additional
// clients are served without affinity.
const maxClients = 1 << 20

// schema describes a family's table and its maps.
type schema struct {
	table nft.Table
	// frontends maps service addresses and ports to a chain's number, and choices maps the number
	// to the chain, which chooses a backend. Two maps are needed because the kernel checks all
	// elements of a map to chains whenever an element is added.
	frontends, choices *nft.Set
	// ranges maps service addresses and ports that have no element in frontends to a range's
	// number. rangeChoices maps the address and that number to a chain.
	ranges, rangeChoices *nft.Set
	// sticky maps clients to backend ids, for indirect choices.
	sticky *nft.Set
	// single holds the maps for frontends with a single port, and ranged the maps for port ranges.
	single, ranged places
}

// places holds the maps whose keys start with a frontend's address and protocol, and its port or
// its range's number.
type places struct {
	// eps maps a frontend's slots to backends.
	eps *nft.Set
	// For indirect choices, slots maps slots to backend ids, and backends maps ids to backends.
	slots, backends *nft.Set
	// digests holds the digest of each frontend, which the next process reads. No rule uses it.
	digests *nft.Set
	// targets maps the ports of a moved range to the endpoints' ports. It is nil for single ports,
	// because each backend has a port.
	targets *nft.Set
}

func (p *places) sets() []*nft.Set {
	all := []*nft.Set{p.digests, p.eps, p.backends, p.slots}
	if p.targets != nil {
		all = append(all, p.targets)
	}
	return all
}

// sets returns all maps in the table.
func (s *schema) sets() []*nft.Set {
	return []*nft.Set{
		s.frontends, s.choices, s.single.eps, s.single.slots, s.single.backends, s.sticky, s.single.digests,
		s.ranges, s.rangeChoices, s.ranged.eps, s.ranged.slots, s.ranged.backends, s.ranged.digests, s.ranged.targets,
	}
}

func (s *schema) placeSets() []*nft.Set { return append(s.single.sets(), s.ranged.sets()...) }

// placesOf returns the maps that contain frontend k's elements.
func (s *schema) placesOf(k balancer.Key) *places {
	if k.Port.IsRange() {
		return &s.ranged
	}
	return &s.single
}

func newSchema(f nft.TableFamily) *schema {
	place := func(more ...nft.Expr) nft.Concat {
		return append(nft.Concat{nft.Daddr, nft.L4proto, nft.Dport}, more...)
	}
	backend := nft.Concat{nft.Daddr, nft.Dport}
	number := nft.Numgen{Random: true, Mod: 2}
	inRange := func(more ...nft.Expr) nft.Concat {
		return append(nft.Concat{nft.Daddr, nft.L4proto, number}, more...)
	}
	digest := nft.Concat{nft.Mark, nft.Mark}
	return &schema{
		table:        nft.Table{Family: f, Name: tableName},
		frontends:    &nft.Set{Name: "frontends", Key: place(), Data: nft.Priority},
		choices:      &nft.Set{Name: "choices", Key: nft.Priority, Verdict: true},
		ranges:       &nft.Set{Name: "ranges", Key: place(), Data: nft.Priority, Interval: true},
		rangeChoices: &nft.Set{Name: "range-choices", Key: nft.Concat{nft.Daddr, nft.L4proto, nft.Priority}, Verdict: true},
		sticky:       &nft.Set{Name: "sticky", Key: nft.Concat{number, number}, Data: nft.Priority, Size: maxClients, Timed: true},
		single: places{
			eps:      &nft.Set{Name: "eps", Key: place(number), Data: backend, Counter: true},
			slots:    &nft.Set{Name: "slots", Key: place(number), Data: nft.Priority},
			backends: &nft.Set{Name: "backends", Key: place(nft.Priority), Data: backend, Counter: true},
			digests:  &nft.Set{Name: "digests", Key: place(), Data: digest},
		},
		ranged: places{ // backends have no ports, because the destination keeps its port or gets it from targets
			eps:      &nft.Set{Name: "range-eps", Key: inRange(number), Data: nft.Daddr, Counter: true},
			slots:    &nft.Set{Name: "range-slots", Key: inRange(number), Data: nft.Priority},
			backends: &nft.Set{Name: "range-backends", Key: inRange(nft.Priority), Data: nft.Daddr, Counter: true},
			digests:  &nft.Set{Name: "range-digests", Key: inRange(), Data: digest},
			targets:  &nft.Set{Name: "range-targets", Key: inRange(nft.Dport), Data: nft.Dport},
		},
	}
}

// baseChain is a chain that always exists, with rules that do not depend on the frontends.
type baseChain struct {
	nft.Chain
	rules []nft.Rule
}

// baseChains returns the chains that send packets to frontends, and the chain that only marks
// connections.
func (s *schema) baseChains(mark uint32) []baseChain {
	dispatch := []nft.Rule{
		{Do: []nft.Stmt{
			nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: s.frontends.Key, In: s.frontends}},
			nft.Vmap{Of: nft.Priority, In: s.choices},
		}},
		{Do: []nft.Stmt{
			nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: s.ranges.Key, In: s.ranges}},
			nft.Vmap{Of: s.rangeChoices.Key, In: s.rangeChoices},
		}},
	}
	return []baseChain{
		{nft.Chain{Name: "prerouting", Hook: &nft.Hook{Type: nft.NAT, Point: nft.Prerouting, Priority: natPriority}}, dispatch},
		{nft.Chain{Name: "output", Hook: &nft.Hook{Type: nft.NAT, Point: nft.Output, Priority: natPriority}}, dispatch},
		{nft.Chain{Name: unserved}, []nft.Rule{{Do: []nft.Stmt{nft.ClearPriority{}, marked(mark)}}}},
	}
}

// unserved is the chain of frontends without active backends, and unservedNumber is its number.
// clearing is the chain that removes backend ids from the packet's priority. It exists while any
// frontend has ids.
const (
	unserved       = "unserved"
	unservedNumber = 1
	clearing       = "postrouting"
)

func marked(mark uint32) nft.Stmt { return nft.AddBits{Field: nft.CtMark, Bits: mark} }

// writeBase adds the table with all objects that do not depend on frontends. It rewrites the rules
// of existing chains.
func (s *schema) writeBase(tx *nft.Tx, mark uint32) {
	tx.AddTable(s.table)
	for _, set := range s.sets() {
		tx.AddSet(s.table, set)
	}
	for _, c := range s.baseChains(mark) {
		s.write(tx, &c.Chain, c.rules)
	}
	tx.FlushSet(s.table, s.choices)
	tx.Create(s.table, s.choices, choiceElem(unservedNumber, unserved))
}

// choiceElem returns the element of choices that maps a number to a chain.
func choiceElem(number uint32, chain string) nft.Elem {
	return nft.Elem{Key: nft.Bytes{}.Number(number), Goto: chain}
}

// writeChoice writes the rules of c into the chain called name.
func (s *schema) writeChoice(tx *nft.Tx, name string, c choice, mark uint32) {
	chain := &nft.Chain{Name: name}
	if name == clearing {
		chain.Hook = &nft.Hook{Type: nft.NAT, Point: nft.Postrouting, Priority: sourcePriority}
	}
	s.write(tx, chain, s.rules(c, mark))
}

func (s *schema) write(tx *nft.Tx, c *nft.Chain, rules []nft.Rule) {
	tx.AddChain(s.table, c)
	tx.FlushChain(s.table, c.Name)
	for _, r := range rules {
		tx.AddRule(s.table, c.Name, r)
	}
}

// choice describes how a chain chooses a number below n for a packet, and how long a client keeps
// its number.
type choice struct {
	method method
	n      uint32
	sticky time.Duration // 0 means no affinity
	memory memory
	// ports is the port range of the only frontend that makes this choice, or 0 for single ports.
	ports balancer.PortRange
	// moved reports whether endpoints serve the range on other ports.
	moved bool
	// foreign holds the ids of foreign endpoints, 4 bytes each. If memory assigns a client to a
	// foreign endpoint, the client's packets continue in ownChain, which uses own (see withOwn).
	foreign  string
	own      memory
	ownChain string
}

// memory is the part of a [balancer.AffinityMemory] that rules contain. Other parts come from the
// packet. The zero value is a single port's memory.
type memory struct {
	// wide reports whether several ports share the memory: all ports of the service, or all ports
	// of the VIP if service is "".
	wide    bool
	service balancer.Name
	prefix  int
}

func newMemory(id balancer.AffinityMemory) memory { return memory{id.Port == 0, id.Service, id.Prefix} }

// String identifies the memory in chain names. It is "" for the zero value.
func (m memory) String() (s string) {
	switch {
	case m.service != "":
		s = "-service-" + string(m.service)
	case m.wide:
		s = "-vip"
	}
	if m.prefix > 0 {
		s += fmt.Sprintf("-prefix-%d", m.prefix)
	}
	return s
}

// seed combines a seed for client hashes with m, so that different memories have different hashes.
func (m memory) seed(seed uint32) uint32 {
	if m == (memory{}) {
		return seed
	}
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, seed, m) // a hash never fails
	return h.Sum32()
}

// withOwn returns the choice of c.ownChain, which applies to clients that have a foreign endpoint
// in c.memory.
func (c choice) withOwn() choice {
	return choice{method: c.method, n: c.n, sticky: c.sticky, memory: c.own, ports: c.ports, moved: c.moved}
}

func (c choice) foreignIDs() (ids []uint32) {
	for id := range slices.Chunk([]byte(c.foreign), 4) {
		ids = append(ids, binary.BigEndian.Uint32(id))
	}
	return ids
}

// ownChainOf derives the name of a choice's ownChain from its chain's name. It returns "" if there
// is none.
func ownChainOf(chain string) string {
	before, rest, _ := strings.Cut(chain, "-vip")
	_, own, ok := strings.Cut(rest, "-or")
	if !ok || strings.Contains(before, "-service-") { // a name that contains "-service-" comes from a service's own name
		return ""
	}
	return before + own
}

// indirect reports whether the chain maps a number to the id of a backend, and then the id to the
// backend. Affinity needs ids because it remembers them. Hashes need ids because only the backends'
// elements have counters, not the many slots.
func (c choice) indirect() bool { return c.sticky > 0 || c.method == byClient }

// method describes how a chain chooses a number.
type method string

const (
	byChance method = "random"
	inTurn   method = "turn"
	byClient method = "hash"
	byNone   method = "clear" // the rules of clearing
	passing  method = "pass"  // for withdrawn frontends: the packet continues unchanged
)

// chain returns the name of the chain that makes the choice c. A chain with a counter or a range's
// number belongs to one frontend; all other chains are shared.
func (c choice) chain(k balancer.Key) string {
	if c.n == 0 {
		return unserved
	}
	name := fmt.Sprintf("%s-%d", c.method, c.n)
	if c.method == inTurn || c.ports != 0 {
		name = fmt.Sprintf("%s-%s/%s/%s", c.method, plain(k.Addr), k.Proto, k.Port)
	}
	if c.moved {
		name += "-moved"
	}
	if c.sticky > 0 {
		name += fmt.Sprintf("-sticky-%d", int(c.sticky.Seconds())) + c.memory.String()
	}
	if c.foreign != "" {
		h := fnv.New32a()
		_, _ = h.Write([]byte(c.foreign)) // a hash never fails
		name += fmt.Sprintf("-not-%08x-or%s", h.Sum32(), c.own)
	}
	return name
}

// plain returns an address as text without colons, which nft does not accept in names.
func plain(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	return hex.EncodeToString(a.AsSlice())
}

// number returns the expression that chooses the number for a packet.
func (c choice) number() nft.Expr {
	switch c.method {
	case inTurn:
		return nft.Numgen{Mod: c.n}
	case byClient:
		return nft.Jhash{Of: nft.Saddr, Mod: c.n, Seed: bucketSeed}
	}
	return nft.Numgen{Random: true, Mod: c.n}
}

// place returns the expression for the first part of a map key, which identifies the packet's
// frontend.
func (c choice) place() nft.Concat {
	if c.ports != 0 {
		return nft.Concat{nft.Daddr, nft.L4proto, nft.Fixed(uint32(c.ports))}
	}
	return nft.Concat{nft.Daddr, nft.L4proto, nft.Dport}
}

// clientHash returns 32 of the 64 bits that identify a client in the map sticky, for the memory m.
func (c choice) clientHash(m memory, seed uint32) nft.Jhash {
	of := nft.Concat{nft.Saddr}
	if m.prefix > 0 {
		of = nft.Concat{nft.Network{Field: nft.Saddr, Bits: m.prefix}}
	}
	if m.wide {
		of = append(of, nft.Daddr)
	} else {
		of = append(of, c.place()...)
	}
	return nft.Jhash{Of: of, Mod: 1<<32 - 1, Seed: m.seed(seed)}
}

// client returns a client's key in the map sticky, for the memory m.
func (c choice) client(m memory) nft.Concat {
	return nft.Concat{c.clientHash(m, stickySeed), c.clientHash(m, stickyAlso)}
}

// rules returns the rules of the chain that makes the choice c.
func (s *schema) rules(c choice, mark uint32) []nft.Rule {
	if c.method == byNone {
		return []nft.Rule{{Do: []nft.Stmt{nft.Bits{Field: nft.CtMark, Mask: mark, Value: mark}, nft.ClearPriority{}}}}
	}
	if c.method == passing {
		return []nft.Rule{{Do: []nft.Stmt{nft.ClearPriority{}}}}
	}
	var rules []nft.Rule
	add := func(all ...nft.Stmt) { rules = append(rules, nft.Rule{Do: all}) }
	at, maps := func(e nft.Expr) nft.Concat { return append(c.place(), e) }, &s.single
	if c.ports != 0 {
		maps = &s.ranged
	}
	var port *nft.Lookup
	if c.moved {
		port = &nft.Lookup{Key: at(nft.Dport), In: maps.targets}
	}
	if !c.indirect() {
		add(nft.ClearPriority{}, marked(mark), nft.DNAT{To: nft.Lookup{Key: at(c.number()), In: maps.eps}, Port: port})
		return rules
	}
	client := c.client(c.memory)
	choose := nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: at(c.number()), In: maps.slots}}
	note := nft.Update{Map: s.sticky, Key: client, Data: nft.Priority, Timeout: c.sticky}
	lead := nft.DNAT{To: nft.Lookup{Key: at(nft.Priority), In: maps.backends}, Port: port}
	if c.sticky == 0 {
		add(marked(mark), choose, lead)
		return rules
	}
	add(marked(mark))
	if c.foreign != "" {
		add(nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: client, In: s.sticky}})
	}
	for _, id := range c.foreignIDs() {
		add(nft.Is{Field: nft.Priority, Value: id}, nft.Goto(c.ownChain))
	}
	add(choose)
	add(note) // a known client keeps its id, and its timeout restarts
	add(nft.SetField{Field: nft.Priority, To: nft.Lookup{Key: client, In: s.sticky}})
	add(lead)
	// The backend with that id was removed or gets no new connections, so the client gets another
	// backend.
	add(nft.Delete{Map: s.sticky, Key: client, Data: nft.Priority})
	add(choose)
	add(note)
	add(lead)
	return rules
}
