package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// many returns n different elements for the set named "held" in a sample table.
func many(n uint32) (all []Elem) {
	for i := range n {
		all = append(all, Elem{Key: Bytes{}.Addr(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))})
	}
	return all
}

// ownSample adds a sample table to the kernel. It returns the sample and a Maintained for its
// table. If listen is true, the Maintained receives events.
func ownSample(t *testing.T, listen bool) (*sample, *Maintained) {
	t.Helper()
	s := newSample(IPv4)
	o := &Maintained{Conn: open(t), Table: s.table}
	if listen {
		if err := o.Listen(); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Conn.Commit(s.tx()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run(t, "", "nft", "flush", "ruleset") })
	if err := o.ReadConsistent(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	return s, o
}

// TestLooksAtOwnTableAlone makes transactions on several tables. Look must compare the sample table
// only after another program has changed that table.
func TestLooksAtOwnTableAlone(t *testing.T) {
	s, o := ownSample(t, true)
	nft := func(lines string) func() { return func() { run(t, lines, "nft", "-f", "-") } }
	own := func(elems []Elem) func() {
		return func() {
			var tx Tx
			tx.Create(s.table, s.held, elems...)
			if err := o.Commit(&tx); err != nil {
				t.Fatal(err)
			}
		}
	}
	alsoOurs := open(t)
	for _, c := range []struct {
		name   string
		change func()
		want   int
	}{
		{"nothing", func() {}, 0},
		{"another table", nft("add table ip other\nadd chain ip other x"), 0},
		{"the table of that name in the other family", nft("add table ip6 sample\nadd chain ip6 sample x"), 0},
		{"an element of ours", own(many(1)), 0},
		{"more of ours than is told, and another table", func() { own(many(40_000)[1:])(); nft("delete table ip other")() }, 0},
		{"more than is told by another connection of this process", func() {
			var tx Tx
			another := Table{IPv4, "another"}
			tx.AddTable(another)
			tx.AddSet(another, s.held)
			tx.Create(another, s.held, many(40_000)...)
			if err := alsoOurs.Commit(&tx); err != nil {
				t.Fatal(err)
			}
		}, 0},
		{"an element of another program", nft("add element ip sample held { 10.97.0.1 }"), 1},
		{"another table again", nft("add table ip other"), 0},
		{"ours and another program's", func() { nft("delete element ip sample held { 10.97.0.1 }")(); own(many(40_001)[40_000:])() }, 1},
		{"the rules of all tables", nft("flush ruleset"), 1},
	} {
		c.change()
		looks := 0
		for range 2 { // the second Look must not compare again
			o.Next = time.Time{}
			if reason, err := o.Look(func() (string, error) { looks++; return "", nil }); reason != "" || err != nil {
				t.Fatalf("%s: Look = %q, %v; want no reason", c.name, reason, err)
			}
		}
		if looks != c.want {
			t.Errorf("%s: comparisons = %d, want %d", c.name, looks, c.want)
		}
	}
}

// TestListensFromNowOn makes a transaction before it calls Listen. Foreign must not wait for this
// transaction's event.
func TestListensFromNowOn(t *testing.T) {
	s, before := ownSample(t, false)
	now, err := before.Generation()
	if err != nil {
		t.Fatal(err)
	}
	c := open(t)
	if err := c.Listen(); err != nil {
		t.Fatal(err)
	}
	if n := c.Foreign(s.table, now); n != 0 {
		t.Errorf("changes by other programs = %d, want 0", n)
	}
}

// TestLooksWithoutEvents uses a connection that receives no events. After each transaction by
// another program, Look must compare the table once.
func TestLooksWithoutEvents(t *testing.T) {
	_, o := ownSample(t, false)
	run(t, "add table ip other", "nft", "-f", "-")
	looks := 0
	for range 2 {
		if _, err := o.Look(func() (string, error) { looks++; return "", nil }); err != nil {
			t.Fatal(err)
		}
	}
	if looks != 1 {
		t.Errorf("comparisons = %d, want 1", looks)
	}
}

// TestLooksAfterWhatWasNotTold loses the event of a transaction. The event of the next transaction
// must reveal the loss, even if that transaction affects another table.
func TestLooksAfterWhatWasNotTold(t *testing.T) {
	_, o := ownSample(t, true)
	run(t, "delete table ip sample", "nft", "-f", "-")
	o.events.sock.Discard() // has the same effect as an overflow of the event buffer
	run(t, "add table ip other", "nft", "-f", "-")
	looks := 0
	if _, err := o.Look(func() (string, error) { looks++; return "", nil }); err != nil || looks != 1 {
		t.Errorf("comparisons = %d, want 1; %v", looks, err)
	}
}

// TestLearnsWhatItWrites makes transactions. The recorded state must equal the state that a read of
// the whole table returns.
func TestLearnsWhatItWrites(t *testing.T) {
	s, o := ownSample(t, true)
	place := Concat{Daddr, L4proto, Dport}
	spare := Rule{Do: []Stmt{DNAT{To: Lookup{append(place, Numgen{Mod: 3}), s.eps}}}}
	for _, c := range []struct {
		name string
		add  func(tx *Tx)
	}{
		{"a chain that was there", func(tx *Tx) { tx.FlushChain(s.table, "hash-8"); tx.AddRule(s.table, "hash-8", spare) }},
		{"new chains", func(tx *Tx) {
			for _, name := range []string{"spare-1", "spare-2"} {
				tx.AddChain(s.table, &Chain{Name: name})
				tx.AddRule(s.table, name, spare)
			}
		}},
		{"no chain", func(tx *Tx) { tx.Create(s.table, s.held, many(1)...) }},
		{"a chain that goes, and one that is emptied", func(tx *Tx) {
			tx.FlushChain(s.table, "spare-1")
			tx.DeleteChain(s.table, "spare-1")
			tx.FlushChain(s.table, "spare-2")
		}},
		{"a table that is made anew", func(tx *Tx) { tx.DeleteTable(s.table); tx.Append(s.tx()) }},
	} {
		var tx Tx
		c.add(&tx)
		if err := o.Commit(&tx); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if now, err := o.Read(); err != nil || !maps.Equal(o.Shape, now) {
			t.Errorf("%s: recorded state =\n%v\nwant the kernel's state\n%v, %v", c.name, o.Shape, now, err)
		}
	}
}

// TestWritesBesideOtherChanges makes another program change the table before and after this
// process's transactions. The other program's changes must never become part of the recorded state.
func TestWritesBesideOtherChanges(t *testing.T) {
	s, o := ownSample(t, true)
	rules := func() *Tx {
		var tx Tx
		tx.FlushChain(s.table, "some-10")
		for _, r := range s.rules()["some-10"] {
			tx.AddRule(s.table, "some-10", r)
		}
		return &tx
	}
	if err := o.Commit(rules()); err != nil || len(o.Shape) < 2 {
		t.Fatalf("without other programs' changes: Commit = %v, recorded state = %v; want nil and at least 2 chains", err, o.Shape)
	}
	whole := strings.Count(o.Shape["some-10"], ":")
	run(t, "flush chain ip sample some-10\n", "nft", "-f", "-")
	if err := o.Commit(rules()); !errors.Is(err, ErrBusy) || o.Shape["some-10"] != "" {
		t.Fatalf("after another program's change: Commit = %v, recorded state = %v; want ErrBusy and no rules for some-10", err, o.Shape)
	}
	storm := exec.CommandContext(t.Context(), "sh", "-c", "while nft flush chain ip sample some-10; do :; done")
	if err := storm.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = storm.Process.Kill(); _ = storm.Wait() }()
	learned, busy := 0, 0
	for ended := time.Now().Add(time.Second); time.Now().Before(ended); {
		if err := o.ReadConsistent(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		switch err := o.Commit(rules()); {
		case errors.Is(err, ErrBusy):
			busy++
		case err != nil:
			t.Fatal(err)
		case strings.Count(o.Shape["some-10"], ":") != whole:
			t.Fatalf("recorded rules = %q after %d valid transactions, want only this process's rules", o.Shape["some-10"], learned)
		default:
			learned++
		}
	}
	t.Logf("learned %d times, %d times not", learned, busy)
}

// TestReadsBesideOtherChanges changes tables while the sample table is being read. Only a change to
// the sample table itself may cause another read.
func TestReadsBesideOtherChanges(t *testing.T) {
	s, o := ownSample(t, true)
	var tx Tx
	tx.Create(s.table, s.held, many(20_000)...)
	if err := o.Commit(&tx); err != nil {
		t.Fatal(err)
	}
	reads := 0
	read := func(meanwhile string) func() error {
		return func() error {
			reads++
			all, err := o.Elements(s.table, "held")
			if err == nil && len(all) < 20_001 {
				t.Errorf("elements = %d, want at least 20001", len(all))
			}
			run(t, meanwhile, "nft", "-f", "-")
			return err
		}
	}
	once := false
	for try := 0; try < 10 && !once; try++ { // the kernel may report a change late, which causes another read
		reads = 0
		if err := o.ReadConsistent(read("add table ip other\ndelete table ip other")); err != nil {
			t.Fatal(err)
		}
		once = reads == 1
	}
	if !once {
		t.Error("10 changes to another table: each caused another read, want none")
	}
	reads = 0
	if err := o.ReadConsistent(read("add element ip sample held { 10.97.0.1 }\ndelete element ip sample held { 10.97.0.1 }")); !errors.Is(err, ErrBusy) || reads != 10 {
		t.Errorf("reads during changes to the table = %d, error = %v; want 10 and ErrBusy", reads, err)
	}
}

// TestRulesBesideOtherTables changes another table while the rules of a large table are being
// listed. The list must be complete.
func TestRulesBesideOtherTables(t *testing.T) {
	s, o := ownSample(t, true)
	const chains = 2000
	var tx Tx
	for i := range chains {
		name := fmt.Sprintf("turn-%d", i+100)
		tx.AddChain(s.table, &Chain{Name: name})
		tx.AddRule(s.table, name, Rule{Do: []Stmt{ClearPriority{}}})
	}
	if err := o.Conn.Commit(&tx); err != nil {
		t.Fatal(err)
	}
	want, err := o.Rules(s.table, "")
	if err != nil || len(want) < chains {
		t.Fatalf("rules = %d, %v; want at least %d", len(want), err, chains)
	}
	other, ended := open(t), make(chan error)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			var tx Tx
			tx.AddTable(Table{IPv4, "other"})
			tx.AddChain(Table{IPv4, "other"}, &Chain{Name: "x"})
			tx.DeleteTable(Table{IPv4, "other"})
			err = other.Commit(&tx)
		}
		ended <- err
	}()
	for range 20 {
		if got, err := o.Rules(s.table, ""); err != nil || !slices.Equal(got, want) {
			t.Errorf("rules = %d, want %d; %v", len(got), len(want), err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTrialsAtOnce runs trials on two connections at the same time, like two processes. The trials'
// tables have the same name. No trial may fail.
func TestTrialsAtOnce(t *testing.T) {
	s := newSample(IPv4)
	ended := make(chan error)
	for _, c := range []*Conn{open(t), open(t)} {
		o := &Maintained{Conn: c, Table: s.table}
		go func() {
			var err error
			for range 200 {
				var tx Tx
				tx.AddTable(s.table)
				err = errors.Join(err, o.Try(&tx))
			}
			ended <- err
		}()
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
