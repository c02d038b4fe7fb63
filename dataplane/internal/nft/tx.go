package nft

import (
	"fmt"
	"slices"
	"strings"
)

// Table identifies a table.
type Table struct {
	Family TableFamily
	Name   string
}

// String returns nft's name for the table, such as "ip vipd".
func (t Table) String() string { return t.Family.String() + " " + t.Name }

// Chain is a chain. Its rules are added with AddRule.
type Chain struct {
	Name string
	// Hook makes the chain a base chain. If nil, the chain receives packets only from other chains.
	Hook *Hook
}

// Hook determines which packets a base chain receives, and when.
type Hook struct {
	Type  ChainType
	Point Point
	// Priority orders the base chains at a point. Lower values come first.
	Priority int32
	// Device is the device whose frames the chain receives, if its table is in the family netdev.
	Device string
}

// ChainType is the type of a base chain.
type ChainType string

// These are the types. Only the first packet of a connection traverses chains of type nat.
const (
	NAT    ChainType = "nat"
	Filter ChainType = "filter"
	Route  ChainType = "route" // only at output: a packet with a changed mark is routed again
)

// Point is the point in the kernel at which a base chain receives packets. Its values are the
// kernel's numbers.
type Point uint32

// These are the points.
const (
	Prerouting  Point = 0
	Input       Point = 1
	Forward     Point = 2
	Output      Point = 3
	Postrouting Point = 4

	// These points exist in the family netdev. Ingress precedes all other points, and Egress
	// follows them. Egress needs Linux 5.16.
	Ingress Point = 0
	Egress  Point = 1
)

// String returns the point's name in nft syntax.
func (p Point) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[p]
}

// text returns nft's declaration of the hook.
func (h *Hook) text() string {
	point := h.Point.String()
	if h.Device != "" {
		point = fmt.Sprintf("%s device %q", [...]string{"ingress", "egress"}[h.Point], h.Device)
	}
	return fmt.Sprintf("{ type %s hook %s priority %d; policy accept; }", h.Type, point, h.Priority)
}

// Tx is a transaction. Its steps take effect in order, either all or none. The zero value is an
// empty transaction.
type Tx struct {
	ops []op
	// Bytes is the size of the transaction when it was last sent.
	Bytes int
	// Deleted holds the elements that the last commit deleted from sets with counters. The kernel
	// reads their counters when packets can no longer reach the elements, so no count is lost.
	Deleted []FoundElem
}

// op is a step of a transaction.
type op struct {
	table Table
	text  string // the command without "add", the table and the elements, which are printed when needed
	verb  string // add, create, delete, flush
	what  string // table, chain, rule, map, set, element
	chain string // the chain of a step about a chain or rule
	write func(*message)
	set   *Set
	elems []Elem
}

// Len returns the number of steps.
func (t *Tx) Len() int { return len(t.ops) }

// counting returns the number of deleted elements that have counters.
func (t *Tx) counting() (n int) {
	for i := range t.ops {
		if o := &t.ops[i]; o.set != nil && o.set.Counter && o.verb == "delete" {
			n += len(o.elems)
		}
	}
	return n
}

// chains returns the chains that the transaction writes (true) or deletes (false).
func (t *Tx) chains() map[string]bool {
	all := map[string]bool{}
	for i := range t.ops {
		if o := &t.ops[i]; o.chain != "" {
			all[o.chain] = o.verb != "delete"
		}
	}
	return all
}

// deletesTable reports whether the transaction deletes a table. That also deletes other programs'
// chains in the table.
func (t *Tx) deletesTable() bool {
	return slices.ContainsFunc(t.ops, func(o op) bool { return o.what == "table" && o.verb == "delete" })
}

// Append appends another transaction's steps.
func (t *Tx) Append(other *Tx) { t.ops = append(t.ops, other.ops...) }

// AddTable creates a table if it does not exist.
func (t *Tx) AddTable(x Table) { t.newTable(x, "", 0) }

// ClaimTable creates a table that only this connection can change. When the connection is closed,
// the table remains, and any program can change it. It needs Linux 6.9. A transaction that replaces
// a table must start with TouchTable.
func (t *Tx) ClaimTable(x Table) {
	t.newTable(x, " { flags owner, persist; }", tableOwner|tablePersist)
}

// TouchTable creates a table if it does not exist. It does not change the flags of an existing
// table.
func (t *Tx) TouchTable(x Table) { t.newTable(x, "") }

func (t *Tx) newTable(x Table, text string, flags ...uint32) {
	t.ops = append(t.ops, op{table: x, verb: "add", what: "table", text: text, write: func(m *message) {
		m.open(msgNewTable, flagCreate, x.Family)
		m.String(tableName, x.Name)
		for _, f := range flags {
			m.Wire32(tableFlags, f)
		}
		m.End()
	}})
}

// DeleteTable removes a table and its content. The transaction fails if the table does not exist.
func (t *Tx) DeleteTable(x Table) {
	t.ops = append(t.ops, op{table: x, verb: "delete", what: "table", write: func(m *message) {
		m.open(msgDelTable, 0, x.Family)
		m.String(tableName, x.Name)
		m.End()
	}})
}

// AddChain creates a chain if it does not exist.
func (t *Tx) AddChain(x Table, c *Chain) {
	text := " " + c.Name
	if c.Hook != nil {
		text += " " + c.Hook.text()
	}
	t.ops = append(t.ops, op{table: x, verb: "add", what: "chain", chain: c.Name, text: text, write: func(m *message) {
		m.open(msgNewChain, flagCreate, x.Family)
		m.String(chainTable, x.Name)
		m.String(chainName, c.Name)
		if c.Hook != nil {
			m.nest(chainHook, func() {
				m.Wire32(hookNum, uint32(c.Hook.Point))
				m.Wire32(hookPriority, uint32(c.Hook.Priority))
				if c.Hook.Device != "" {
					m.String(hookDevice, c.Hook.Device)
				}
			})
			m.Wire32(chainPolicy, policyAccept)
			m.String(chainType, string(c.Hook.Type))
		}
		m.End()
	}})
}

// DeleteChain removes a chain. The chain must be empty, and no rule may refer to it.
func (t *Tx) DeleteChain(x Table, name string) {
	t.named(x, "delete", "chain", msgDelChain, chainName, name).chain = name
}

// FlushChain removes all rules from a chain.
func (t *Tx) FlushChain(x Table, name string) {
	t.named(x, "flush", "chain", msgDelRule, ruleChain, name).chain = name
}

// AddRule appends a rule to a chain.
func (t *Tx) AddRule(x Table, chain string, r Rule) {
	t.ops = append(t.ops, op{table: x, verb: "add", what: "rule", chain: chain, text: " " + chain + " " + r.text(x.Family), write: func(m *message) {
		m.open(msgNewRule, flagCreate|flagAppend, x.Family)
		m.String(ruleTable, x.Name)
		m.String(ruleChain, chain)
		r.write(m, x.Family)
		m.End()
	}})
}

// AddSet creates a set or map if it does not exist.
func (t *Tx) AddSet(x Table, s *Set) {
	id := uint32(len(t.ops) + 1) // must be unique in the transaction
	t.ops = append(t.ops, op{table: x, verb: "add", what: s.word(), text: s.text(x.Family), write: func(m *message) {
		m.open(msgNewSet, flagCreate, x.Family)
		m.String(setTable, x.Name)
		s.write(m, x.Family, id)
		m.End()
	}})
}

// DeleteSet removes a set or map that no rule uses.
func (t *Tx) DeleteSet(x Table, s *Set) { t.named(x, "delete", s.word(), msgDelSet, setName, s.Name) }

// FlushSet removes all elements from a set.
func (t *Tx) FlushSet(x Table, s *Set) {
	t.named(x, "flush", s.word(), msgDelSetElem, elemsSet, s.Name)
}

// named adds a step that needs only the name of an object.
func (t *Tx) named(x Table, verb, what string, kind int, attribute uint16, name string) *op {
	t.ops = append(t.ops, op{table: x, verb: verb, what: what, text: " " + name, write: func(m *message) {
		m.open(kind, 0, x.Family)
		m.String(1, x.Name) // the first attribute of each type of object is the table
		m.String(attribute, name)
		m.End()
	}})
	return &t.ops[len(t.ops)-1]
}

// Add adds elements to a set. Existing elements remain, and must have the same data.
func (t *Tx) Add(x Table, s *Set, elems ...Elem) {
	t.elements(x, s, "add", msgNewSetElem, flagCreate, elems)
}

// Create adds elements to a set. The transaction fails if any of them exists.
func (t *Tx) Create(x Table, s *Set, elems ...Elem) {
	t.elements(x, s, "create", msgNewSetElem, flagCreate|flagExcl, elems)
}

// Delete removes elements from a set. The transaction fails if any of them is missing.
func (t *Tx) Delete(x Table, s *Set, elems ...Elem) {
	t.elements(x, s, "delete", msgDelSetElem, 0, elems)
}

// maxNested limits the size of the elements in a message, because an attribute's length has 16
// bits.
const maxNested = 60_000

func (t *Tx) elements(x Table, s *Set, verb string, kind, flags int, elems []Elem) {
	if len(elems) == 0 {
		return
	}
	t.ops = append(t.ops, op{table: x, verb: verb, what: "element", set: s, elems: elems, write: func(m *message) {
		key, data := s.Key.kind(x.Family).size, 0
		if s.Data != nil {
			data = s.Data.kind(x.Family).size
		}
		flags := flags
		if m.echo && s.Counter && kind == msgDelSetElem {
			flags |= flagEcho
		}
		for rest := elems; len(rest) > 0; {
			m.open(kind, flags, x.Family)
			m.String(elemsTable, x.Name)
			m.String(elemsSet, s.Name)
			m.Nest(elemsElements)
			for len(rest) > 0 && m.Nested() < maxNested {
				rest[0].write(m, key, data, kind == msgNewSetElem)
				rest = rest[1:]
			}
			m.Unnest()
			m.End()
		}
	}})
}

// Text returns the transaction as input for "nft -f".
func (t *Tx) Text() string {
	var b strings.Builder
	for i := range t.ops {
		b.WriteString(t.ops[i].String())
		b.WriteByte('\n')
	}
	return b.String()
}

// String returns the step as an nft command.
func (o *op) String() string {
	text := o.text
	if o.set != nil {
		elems := make([]string, len(o.elems))
		for i := range o.elems {
			elems[i] = o.elems[i].text(o.set, o.table.Family, o.verb != "delete")
		}
		text = " " + o.set.Name + " { " + strings.Join(elems, ", ") + " }"
	}
	return o.verb + " " + o.what + " " + o.table.String() + text
}

// encode returns the transaction as netlink messages, numbered from seq, and each message's step.
// Only the message of the last step requests an acknowledgement, because the kernel always reports
// errors. If echo is set, the kernel also returns the deleted elements.
func (t *Tx) encode(seq uint32, echo bool) (b []byte, steps []int) {
	m := &message{seq: seq, echo: echo}
	note := func(step int) {
		for uint32(len(steps)) < m.seq-seq {
			steps = append(steps, step)
		}
	}
	m.header(batchBegin, 0, 0, subsystem)
	m.End()
	note(-1)
	for i := range t.ops {
		t.ops[i].write(m)
		note(i)
	}
	m.Ask()
	m.header(batchEnd, 0, 0, subsystem)
	m.End()
	note(-1)
	return m.B, steps
}
