package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// errChanged means that the data changed while it was being listed.
var errChanged = fmt.Errorf("the rules changed while they were being listed: %w", unix.EAGAIN)

// list sends a request, and calls the function "each" with each answer's attributes. The function
// "ask" writes the request's attributes, and may be nil. list returns errChanged if the data
// changed while it was being listed.
func (c *Conn) list(kind int, family TableFamily, dump bool, ask func(*message), each func(body []byte)) error {
	c.sock.Discard()
	q := &message{seq: c.seq}
	c.seq++
	flags := flagAck
	if dump {
		flags = unix.NLM_F_DUMP
	}
	q.open(kind, flags, family)
	if ask != nil {
		ask(q)
	}
	q.End()
	if err := c.sock.Send(q.B); err != nil {
		return fmt.Errorf("asking nf_tables: %w", err)
	}
	changed := false
	for {
		m, err := c.sock.Answer()
		if err != nil {
			return fmt.Errorf("waiting for nf_tables: %w", err)
		}
		for m.Next() {
			if m.Seq != q.seq-1 {
				continue
			}
			changed = changed || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Kind {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				if err := m.Refusal(); err != nil || !changed {
					return err
				}
				return errChanged
			}
			if len(m.Body) >= 4 {
				each(m.Body[4:])
			}
		}
		if m.Err != nil {
			return m.Err
		}
	}
}

// dump calls list, and repeats the call a limited number of times if the data changed. The function
// reset must discard the previous attempt's results. A missing table is not an error.
func (c *Conn) dump(kind int, x Table, ask func(*message), reset func(), each func(body []byte)) (err error) {
	for range 10 {
		reset()
		if err = c.list(kind, x.Family, true, ask, each); !errors.Is(err, errChanged) {
			break
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// HasTable reports whether the table exists.
func (c *Conn) HasTable(x Table) (bool, error) {
	state, err := c.tableState(x)
	return state != "", err
}

// tableState returns "awake", "dormant" if the table's chains do not receive packets, or "" if the
// table is missing.
func (c *Conn) tableState(x Table) (state string, err error) {
	err = c.list(msgGetTable, x.Family, false, func(m *message) { m.String(tableName, x.Name) }, func(body []byte) {
		state = "awake"
		for a := nlsock.In(body); a.Next(); {
			if a.Kind == tableFlags && number(a.Value)&tableDormant != 0 {
				state = "dormant"
			}
		}
	})
	if errors.Is(err, syscall.ENOENT) {
		return "", nil
	}
	return state, err
}

// Found is an existing chain or set.
type Found struct {
	Name string
	// Use is the number of rules in a chain, plus the number of rules and elements that refer to
	// it. It is 0 for sets.
	Use uint32
	// Policy is the kernel's number for a base chain's policy.
	Policy uint32
}

// Chains returns the chains of a table. A missing table has no chains.
func (c *Conn) Chains(x Table) (all []Found, err error) {
	err = c.dump(msgGetChain, x, nil, func() { all = nil }, func(body []byte) {
		if f, table := chainIn(body); table == x.Name {
			all = append(all, f)
		}
	})
	return all, err
}

// HasChain reports whether a table has a chain.
func (c *Conn) HasChain(x Table, name string) (bool, error) {
	found, err := c.chain(x, name)
	return len(found) > 0, err
}

func (c *Conn) chain(x Table, name string) (found []Found, err error) {
	ask := func(m *message) {
		m.String(chainTable, x.Name)
		m.String(chainName, name)
	}
	err = c.list(msgGetChain, x.Family, false, ask, func(body []byte) {
		f, _ := chainIn(body)
		found = append(found, f)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return found, err
}

func chainIn(body []byte) (f Found, table string) {
	for a := nlsock.In(body); a.Next(); {
		switch a.Kind {
		case chainTable:
			table = text(a.Value)
		case chainName:
			f.Name = text(a.Value)
		case chainUse:
			f.Use = number(a.Value)
		case chainPolicy:
			f.Policy = number(a.Value)
		}
	}
	return f, table
}

// Sets returns the named sets and maps of a table. A missing table has no sets.
func (c *Conn) Sets(x Table) (all []Found, err error) {
	ask := func(m *message) { m.String(setTable, x.Name) }
	err = c.dump(msgGetSet, x, ask, func() { all = nil }, func(body []byte) {
		var f Found
		for a := nlsock.In(body); a.Next(); {
			if a.Kind == setName {
				f.Name = text(a.Value)
			}
		}
		all = append(all, f)
	})
	return all, err
}

// FoundRule is an existing rule. Content is a hash of its expressions without counters. Content
// reveals that a rule was replaced. The handle does not, because since Linux 6.18, the new rule
// keeps it.
type FoundRule struct {
	Chain           string
	Handle, Content uint64
}

// Rules returns the rules of a chain in order, or of all chains if chain is empty. Missing objects
// have no rules. Like Elements, Rules ignores changes to other tables, because the kernel counts
// only this table's rules to find its position in the list.
func (c *Conn) Rules(x Table, chain string) (all []FoundRule, err error) {
	ask := func(m *message) {
		m.String(ruleTable, x.Name)
		if chain != "" {
			m.String(ruleChain, chain)
		}
	}
	err = c.list(msgGetRule, x.Family, true, ask, func(body []byte) {
		var r FoundRule
		for a := nlsock.In(body); a.Next(); {
			switch a.Kind {
			case ruleChain:
				r.Chain = text(a.Value)
			case ruleHandle:
				r.Handle = number64(a.Value)
			case ruleExprs:
				r.Content = contentOf(a.Value)
			}
		}
		all = append(all, r)
	})
	return all, elsewhere(err)
}

// elsewhere returns nil if err only means that the table is missing, or that any table changed
// while it was being listed. Changes to other tables do not affect the list, and ReadConsistent and
// Commit detect changes to this table.
func elsewhere(err error) error {
	if errors.Is(err, errChanged) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// ChainRules calls the function "begin", and then the function "rule" with the attributes of each
// rule in a chain, in order. If the rules change in the meantime, it starts again. It returns false
// if the chain is missing.
func (c *Conn) ChainRules(x Table, chain string, begin func(), rule func(attrs []byte)) (there bool, err error) {
	ask := func(m *message) {
		m.String(ruleTable, x.Name)
		m.String(ruleChain, chain)
	}
	err = c.dump(msgGetRule, x, ask, begin, func(attrs []byte) {
		there = true
		rule(attrs)
	})
	if err != nil || there {
		return there, err
	}
	return c.HasChain(x, chain) // a missing chain also has no rules
}

// Elements returns the elements of a set. A missing set has no elements. Changes to other sets do
// not affect the kernel's list of a set, so they do not cause another attempt. If they did, a large
// set might never be listed, because the time grows with the square of the number of elements (6 ms
// for 10,000, 250 ms for 100,000).
func (c *Conn) Elements(x Table, set string) (all []FoundElem, err error) {
	ask := func(m *message) {
		m.String(elemsTable, x.Name)
		m.String(elemsSet, set)
	}
	err = c.list(msgGetSetElem, x.Family, true, ask, func(body []byte) { all = append(all, elementsIn(body)...) })
	return all, elsewhere(err)
}

// Find reads individual elements of a set by key. If an element is missing, it returns an error.
func (c *Conn) Find(x Table, s *Set, elems []Elem) (all []FoundElem, err error) {
	size := s.Key.kind(x.Family).size
	ask := func(m *message) {
		m.String(elemsTable, x.Name)
		m.String(elemsSet, s.Name)
		m.nest(elemsElements, func() {
			for i := range elems {
				elems[i].write(m, size, 0, false)
			}
		})
	}
	err = c.list(msgGetSetElem, x.Family, false, ask, func(body []byte) { all = append(all, elementsIn(body)...) })
	return all, err
}

func elementsIn(body []byte) (all []FoundElem) {
	for a := nlsock.In(body); a.Next(); {
		if a.Kind != elemsElements {
			continue
		}
		for e := nlsock.In(a.Value); e.Next(); {
			all = append(all, element(e.Value))
		}
	}
	return all
}

func element(b []byte) (e FoundElem) {
	for a := nlsock.In(b); a.Next(); {
		switch a.Kind {
		case elemKey:
			e.Key = value(a.Value)
		case elemKeyEnd:
			e.KeyEnd = value(a.Value)
		case elemData:
			e.Data, e.Goto, e.Jump = data(a.Value)
		case elemExpiration:
			e.Expires = time.Duration(number64(a.Value)) * time.Millisecond
		case elemUserdata:
			e.Comment = commentOf(a.Value)
		case elemExpr:
			e.Packets, _ = Counted(a.Value)
		case elemExprs:
			for x := nlsock.In(a.Value); x.Next(); {
				e.Packets, _ = Counted(x.Value)
			}
		}
	}
	return e
}

func value(b []byte) []byte {
	for a := nlsock.In(b); a.Next(); {
		if a.Kind == dataValue {
			return append([]byte(nil), a.Value...)
		}
	}
	return nil
}

func data(b []byte) (v []byte, goTo, jump string) {
	for a := nlsock.In(b); a.Next(); {
		switch a.Kind {
		case dataValue:
			v = append([]byte(nil), a.Value...)
		case dataVerdict:
			code, chain := uint32(0), ""
			for d := nlsock.In(a.Value); d.Next(); {
				switch d.Kind {
				case verdictCode:
					code = number(d.Value)
				case verdictChain:
					chain = text(d.Value)
				}
			}
			if code == codeJump {
				jump = chain
			} else {
				goTo = chain
			}
		}
	}
	return v, goTo, jump
}

// contentOf returns FoundRule.Content for a rule's expressions.
func contentOf(exprs []byte) uint64 {
	h := fnv.New64a()
	for e := nlsock.In(exprs); e.Next(); {
		if _, counts := Counted(e.Value); !counts {
			_, _ = h.Write(e.Value) // never fails
		}
	}
	return h.Sum64()
}

// Counted returns the packet count of a counter expression in netlink encoding. ok is false for
// other expressions.
func Counted(expr []byte) (packets uint64, ok bool) {
	for a := nlsock.In(expr); a.Next(); {
		switch {
		case a.Kind == exprName:
			ok = text(a.Value) == "counter"
		case a.Kind == exprData && ok:
			for n := nlsock.In(a.Value); n.Next(); {
				if n.Kind == 2 { // NFTA_COUNTER_PACKETS
					packets = number64(n.Value)
				}
			}
		}
	}
	return packets, ok
}

func commentOf(b []byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		n := int(b[1])
		if b[0] == udataRuleText {
			return text(b[2 : 2+n])
		}
		b = b[2+n:]
	}
	return ""
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func number64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
