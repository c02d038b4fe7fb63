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

// errChanged says that what was listed changed meanwhile.
var errChanged = fmt.Errorf("the rules changed while they were listed: %w", unix.EAGAIN)

// list asks one question and calls each with the attributes of each answer. A list that changed while it was read is
// ErrChanged.
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

// dump lists again while what is listed changes, some times. reset forgets what an earlier try has found. A table that is
// not there has nothing in it.
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

// HasTable reports whether the table is there.
func (c *Conn) HasTable(x Table) (bool, error) {
	state, err := c.tableState(x)
	return state != "", err
}

// tableState is "awake" or, where the table's chains meet no packets, "dormant"; it is empty where there is no such table.
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

// Found is a chain or a set that is there.
type Found struct {
	Name string
	// Use is how many rules and elements a chain has and how many lead to it; 0 for sets.
	Use uint32
	// Policy is what a base chain does with packets that leave it at its end, as the kernel's number.
	Policy uint32
}

// Chains lists the chains of a table; none where the table is not there.
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

// chain finds the chain of this name; none where it is not there.
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

// Sets lists the named sets and maps of a table; none where the table is not there.
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

// FoundRule is a rule that is there. Content is a hash of its expressions without what they have counted: a rule that was
// replaced keeps its handle since Linux 6.18.
type FoundRule struct {
	Chain           string
	Handle, Content uint64
}

// Rules lists the rules of a chain in their order, or of all chains of the table where chain is empty; none where what is asked
// about is not there. As with Elements, what others change elsewhere does not matter: the kernel finds its place in the list again by
// the number of rules of this table that it has told.
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

// elsewhere is err, unless it says that the table is not there, or that something has changed while a list that no transaction on
// other tables changes was read: Steady and Commit know of those on this one.
func elsewhere(err error) error {
	if errors.Is(err, errChanged) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// ChainRules calls rule with the attributes of each rule of a chain, in their order, and begin before the first, again where the
// rules have changed meanwhile. there is false where the chain is absent.
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
	return c.HasChain(x, chain) // an absent chain has no rules either
}

// Elements lists the elements of a set; none where the set is not there. What other programs change elsewhere does not matter to
// the kernel's list of one set, but may go on for longer than it takes to read: its time grows with the square of the number of
// elements, 10,000 take 6 ms, 100,000 a quarter of a second.
func (c *Conn) Elements(x Table, set string) (all []FoundElem, err error) {
	ask := func(m *message) {
		m.String(elemsTable, x.Name)
		m.String(elemsSet, set)
	}
	err = c.list(msgGetSetElem, x.Family, true, ask, func(body []byte) { all = append(all, elementsIn(body)...) })
	return all, elsewhere(err)
}

// Find reads single elements of a set by their keys. An error says that one is not there.
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
			e.Data, e.Goto = data(a.Value)
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

func data(b []byte) (v []byte, chain string) {
	for a := nlsock.In(b); a.Next(); {
		switch a.Kind {
		case dataValue:
			v = append([]byte(nil), a.Value...)
		case dataVerdict:
			for d := nlsock.In(a.Value); d.Next(); {
				if d.Kind == verdictChain {
					chain = text(d.Value)
				}
			}
		}
	}
	return v, chain
}

// contentOf is the hash of a rule's expressions, for FoundRule.
func contentOf(exprs []byte) uint64 {
	h := fnv.New64a()
	for e := nlsock.In(exprs); e.Next(); {
		if _, counts := Counted(e.Value); !counts {
			_, _ = h.Write(e.Value) // never fails
		}
	}
	return h.Sum64()
}

// Counted reads what a counter has counted from the kernel's form of an expression; ok is false where that is no counter.
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

// commentOf reads the comment in user data.
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
