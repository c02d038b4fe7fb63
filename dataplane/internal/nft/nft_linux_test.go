package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func open(t *testing.T) *Conn {
	t.Helper()
	lab.Require(t)
	lab.Need(t, "nft")
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// run runs a command with this standard input, and returns its output.
func run(t *testing.T, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\ninput:\n%s", name, strings.Join(args, " "), err, out, input)
	}
	return string(out)
}

// sample is a table that uses each kind of object, expression and statement that the package
// supports.
type sample struct {
	table                                                                                                Table
	svc, special, eps, slots, ids, sticky, hosts, redir, always, allowed, held, pair, sizes, dead, again *Set
}

func newSample(f TableFamily) *sample {
	place := Concat{Daddr, L4proto, Dport}
	target := Concat{Daddr, Dport}
	number := Numgen{Random: true, Mod: 2}
	return &sample{
		table:   Table{f, "sample"},
		svc:     &Set{Name: "svc", Key: place, Verdict: true, Counter: true},
		special: &Set{Name: "special", Key: place, Verdict: true},
		eps:     &Set{Name: "eps", Key: append(place[:3:3], number), Data: target},
		slots:   &Set{Name: "slots", Key: append(place[:3:3], number), Data: Priority},
		ids:     &Set{Name: "ids", Key: append(place[:3:3], Priority), Data: target},
		sticky:  &Set{Name: "sticky", Key: Concat{number, number}, Data: Priority, Size: 1000, Timed: true},
		hosts:   &Set{Name: "hosts", Key: append(place[:3:3], number), Data: Daddr},
		redir:   &Set{Name: "redir", Key: place, Data: Dport},
		always:  &Set{Name: "always", Key: place},
		allowed: &Set{Name: "allowed", Key: append(place[:3:3], Saddr), Interval: true},
		held:    &Set{Name: "held", Key: Daddr},
		pair:    &Set{Name: "pair", Key: Concat{IifName, OifName}},
		sizes:   &Set{Name: "sizes", Key: place, Data: Maxseg},
		dead:    &Set{Name: "dead", Key: Concat{Daddr, Dport, Saddr, Sport}},
		again:   &Set{Name: "again", Key: Concat{Saddr, Sport, Daddr, Dport}, Size: 1000, Timed: true, Dynamic: true},
	}
}

func (s *sample) sets() []*Set {
	return []*Set{s.svc, s.special, s.eps, s.slots, s.ids, s.sticky, s.hosts, s.redir, s.always, s.allowed, s.held, s.pair, s.sizes, s.dead, s.again}
}

// rules returns the rules of each chain in the sample.
func (s *sample) rules() map[string][]Rule {
	place := Concat{Daddr, L4proto, Dport}
	with := func(e Expr) Concat { return append(place[:3:3], e) }
	hash := func(seed uint32) Expr {
		return Jhash{Of: Concat{Saddr, Daddr, L4proto, Dport}, Mod: 4294967295, Seed: seed}
	}
	client := Concat{hash(1), hash(2)}
	ours := AddBits{CtMark, 0x8000}
	do := func(all ...Stmt) Rule { return Rule{Do: all} }
	return map[string][]Rule{
		"pre":     {do(Vmap{place, s.svc}), do(Is{L4proto, 6, false}, NotLocal{}, Redirect{Lookup{place, s.redir}}), do(Is{L4proto, 17, false}, DNATPort{Lookup{place, s.redir}})},
		"out":     {do(Vmap{place, s.svc})},
		"some-10": {do(ours), do(DNAT{To: Lookup{with(Numgen{Random: true, Mod: 10}), s.eps}})},
		"turn-3":  {do(ours), do(DNAT{To: Lookup{with(Numgen{Mod: 3}), s.eps}})},
		"moved":   {do(DNAT{Lookup{with(Numgen{Random: true, Mod: 10}), s.hosts}, &Lookup{place, s.redir}})},
		"fixed":   {do(ours), do(DNAT{To: Lookup{with(Fixed(9)), s.eps}})},
		"hash-8":  {do(ours), do(DNAT{To: Lookup{with(Jhash{Of: Saddr, Mod: 8, Seed: 7}), s.eps}})},
		"sticky-3": {
			do(SetField{Priority, Lookup{with(Numgen{Random: true, Mod: 3}), s.slots}}),
			do(Update{s.sticky, client, Priority, 3 * time.Hour}),
			do(SetField{Priority, Lookup{client, s.sticky}}),
			do(DNAT{To: Lookup{with(Priority), s.ids}}),
			do(Delete{s.sticky, client, Priority}),
		},
		"checks": {
			do(Is{Iif, 1, false}, Goto("hash-8")),
			do(In{with(Saddr), s.allowed, true}, Drop),
			do(In{place, s.always, false}, AddBits{CtMark, 0x4000}),
			do(In{Concat{Saddr, L4proto, Sport}, s.always, false}, Accept),
		},
		"in": {
			do(State(Established|Related), Accept),
			do(State(New), Translated{}, Accept),
			do(FromClient{}, Accept),
			do(Is{L4proto, 6, false}, In{Concat{Daddr, Dport, CtReplySaddr, CtReplySport}, s.dead, false}, Update{s.again, Concat{Saddr, Sport, Daddr, Dport}, nil, time.Second}, Drop),
			do(Is{L4proto, 132, false}, OpensSCTP{}, Drop),
			do(Is{L4proto, 6, false}, Flags{SYN | RST, SYN, false}, OnlyACK{}),
			do(In{Daddr, s.held, true}, Accept),
			do(Is{L4proto, 6, false}, ResetTCP),
			do(Unreachable),
		},
		"forward-it": {
			do(Bits{CtMark, 0x8000, 0x8000, false}, Is{L4proto, 6, false}, Flags{SYN | RST, SYN, false}, SetField{Maxseg, Lookup{Concat{CtDaddr, L4proto, CtDport}, s.sizes}}),
			do(Is{L4proto, 6, false}, Flags{SYN | RST, SYN, true}, Return),
			do(Is{L4proto, 6, false}, Flags{SYN | RST, SYN, false}, ClampMSS{}),
			do(Is{L4proto, 6, true}, Accept),
		},
		"post": {
			do(Bits{CtMark, 0x20000, 0x20000, false}, ClearPriority{}),
			do(Is{Oif, 1, false}, Return),
			do(In{Concat{IifName, OifName}, s.pair, false}, Masquerade),
			do(Bits{Mark, 0x4000, 0x4000, true}, Masquerade),
		},
		"early": {do(In{place, s.always, false}, Notrack)},
	}
}

func (s *sample) tx() *Tx {
	var tx Tx
	tx.AddTable(s.table)
	for _, set := range s.sets() {
		tx.AddSet(s.table, set)
	}
	for _, c := range []*Chain{
		{"some-10", nil}, {"turn-3", nil}, {"moved", nil}, {"hash-8", nil}, {"sticky-3", nil}, {"checks", nil},
		{"early", &Hook{Type: Filter, Point: Prerouting, Priority: -300}},
		{"pre", &Hook{Type: NAT, Point: Prerouting, Priority: -105}}, {"out", &Hook{Type: NAT, Point: Output, Priority: -105}},
		{"in", &Hook{Type: Filter, Point: Input, Priority: -5}}, {"forward-it", &Hook{Type: Filter, Point: Forward, Priority: 0}}, {"post", &Hook{Type: NAT, Point: Postrouting, Priority: 95}},
	} {
		tx.AddChain(s.table, c)
	}
	for _, c := range []string{"some-10", "turn-3", "moved", "hash-8", "sticky-3", "checks", "early", "pre", "out", "in", "forward-it", "post"} {
		for _, r := range s.rules()[c] {
			tx.AddRule(s.table, c, r)
		}
	}
	vip, client, far := netip.MustParseAddr("10.96.0.1"), netip.MustParsePrefix("192.168.7.0/24"), netip.MustParseAddr("192.168.1.2")
	if s.table.Family == IPv6 {
		vip, client, far = netip.MustParseAddr("fd00::1"), netip.MustParsePrefix("fd07::/64"), netip.MustParseAddr("fd01::2")
	}
	key := func() Bytes { return Bytes{}.Addr(vip).Proto(6).Port(80) }
	tx.Create(s.table, s.svc, Elem{Key: key(), Goto: "some-10", Comment: "web/http 0011aabb 10"})
	tx.Create(s.table, s.special, Elem{Key: Bytes{}.Addr(vip).Proto(17).Port(53), Goto: "checks"}) // each map has a single element, because the kernel lists elements in random order
	tx.Create(s.table, s.eps, Elem{Key: key().Number(3), Data: Bytes{}.Addr(far).Port(8080)})
	tx.Create(s.table, s.slots, Elem{Key: key().Number(1), Data: Bytes{}.Number(0xffff0002)})
	tx.Create(s.table, s.ids, Elem{Key: key().Number(0xffff0002), Data: Bytes{}.Addr(far).Port(8080)})
	tx.Create(s.table, s.hosts, Elem{Key: key().Number(3), Data: Bytes{}.Addr(far)})
	tx.Create(s.table, s.redir, Elem{Key: key(), Data: Bytes{}.Port(40000)})
	tx.Create(s.table, s.always, Elem{Key: Bytes{}.Addr(vip).Proto(132).Port(80)})
	tx.Create(s.table, s.allowed, Elem{Key: key().Addr(client.Addr()), KeyEnd: key().Addr(Last(client))})
	tx.Create(s.table, s.held, Elem{Key: Bytes{}.Addr(vip)})
	tx.Create(s.table, s.pair, Elem{Key: Bytes{}.Name("eth9").Name("eth9")})
	tx.Create(s.table, s.sizes, Elem{Key: key(), Data: Bytes{}.Port(1250)})
	return &tx
}

var (
	// handles matches the handles of objects, which are different after each load.
	handles = regexp.MustCompile(`(?m)^(ip6? \S+ \S+) \d+( \d+)?$`)
	// swap matches an instruction that swaps the bytes of a protocol, which is a single byte. nft
	// 1.0.6 adds this instruction, which has no effect, before lookups in sets with ranges.
	swap = regexp.MustCompile(`(?m)^  \[ byteorder reg \d+ = hton\(reg \d+, 2, 1\) \]\n`)
)

// state returns the table as nft lists it, and as the kernel returns it: the bytecode of the rules
// and the headers of the sets.
func state(t *testing.T, c *Conn, s *sample) string {
	t.Helper()
	var b strings.Builder
	listing := run(t, "", "nft", "--debug=netlink", "list", "table", s.table.Family.String(), s.table.Name)
	b.WriteString(handles.ReplaceAllString(swap.ReplaceAllString(listing, ""), "$1"))
	for _, set := range s.sets() {
		err := c.list(msgGetSet, s.table.Family, false, func(m *message) {
			m.String(setTable, s.table.Name)
			m.String(setName, set.Name)
		}, func(body []byte) { fmt.Fprintf(&b, "%s: %q\n", set.Name, withoutHandle(body)) })
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestLoadsWhatNftLoads loads a table with this package, and then loads the table's text with nft.
// The kernel's state and nft's listing must be the same. nft must be able to load its own listing,
// as at boot, even though it names a missing interface.
func TestLoadsWhatNftLoads(t *testing.T) {
	c := open(t)
	for _, f := range []TableFamily{IPv4, IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			s := newSample(f)
			tx := s.tx()
			if err := c.Commit(tx); err != nil {
				t.Fatal(err)
			}
			ours := state(t, c, s)
			run(t, "", "nft", "delete", "table", f.String(), s.table.Name)
			run(t, tx.Text(), "nft", "-f", "-")
			if theirs := state(t, c, s); ours != theirs {
				t.Errorf("table loaded by this package differs from the table loaded by nft:\n%s", difference(ours, theirs))
			}
			listing := run(t, "", "nft", "list", "table", f.String(), s.table.Name)
			run(t, "flush ruleset\n"+listing, "nft", "-f", "-")
			if again := run(t, "", "nft", "list", "table", f.String(), s.table.Name); again != listing {
				t.Errorf("nft's listing differs after nft has loaded it:\n%s", difference(again, listing))
			}
			run(t, "", "nft", "flush", "ruleset")
		})
	}
}

func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out strings.Builder
	for i := range max(len(x), len(y)) {
		var l, r string
		if i < len(x) {
			l = x[i]
		}
		if i < len(y) {
			r = y[i]
		}
		if l != r {
			fmt.Fprintf(&out, "ours   %s\ntheirs %s\n", l, r)
		}
	}
	return out.String()
}

// TestRefusals commits a transaction that the kernel refuses. The error must name the refused step.
// No step may take effect, and the next transaction must work.
func TestRefusals(t *testing.T) {
	c := open(t)
	s := newSample(IPv4)
	if err := c.Commit(s.tx()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run(t, "", "nft", "flush", "ruleset") })
	before, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	absent := Elem{Key: Bytes{}.Addr(netip.MustParseAddr("10.96.0.9"))}
	var tx Tx
	tx.AddChain(s.table, &Chain{Name: "more"})
	for range 500 {
		tx.Delete(s.table, s.held, absent)
	}
	var refused *Error
	if err := c.Commit(&tx); !errors.As(err, &refused) || !errors.Is(err, syscall.ENOENT) || refused.Step != "delete element ip sample held { 10.96.0.9 }" {
		t.Errorf("Commit = %v, want ENOENT at the step that deletes an element", err)
	}
	if after, err := c.Generation(); err != nil || after != before {
		t.Errorf("generation = %d before the transaction and %d after it, %v; want no change", before, after, err)
	}
	tx = Tx{}
	tx.Add(s.table, s.held, absent)
	if err := c.Commit(&tx); err != nil {
		t.Error(err)
	}
	if after, err := c.Generation(); err != nil || after == before {
		t.Errorf("generation = %d, want a new one; error = %v", after, err)
	}
}

// TestReads reads a sample table to which a transaction has added many elements. All objects must
// be returned.
func TestReads(t *testing.T) {
	c := open(t)
	s := newSample(IPv4)
	if err := c.Commit(s.tx()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run(t, "", "nft", "flush", "ruleset") })
	const number = 20_000
	var tx Tx
	tx.Create(s.table, s.held, many(number)...)
	if err := c.Commit(&tx); err != nil {
		t.Fatal(err)
	}
	held, err := c.Elements(s.table, "held")
	if err != nil || len(held) != number+1 {
		t.Errorf("elements = %d, %v; want %d", len(held), err, number+1)
	}
	svc, err := c.Elements(s.table, "svc")
	if err != nil || len(svc) != 1 || svc[0].Goto != "some-10" || svc[0].Comment != "web/http 0011aabb 10" {
		t.Errorf("elements of the map svc = %+v, %v; want one element that leads to some-10", svc, err)
	}
	special, err := c.Elements(s.table, "special")
	if err != nil || len(special) != 1 || special[0].Goto != "checks" {
		t.Errorf("elements of the map special = %+v, %v; want one element that leads to checks", special, err)
	}
	chains, err := c.Chains(s.table)
	if err != nil || len(chains) != 12 {
		t.Errorf("chains = %v, %v, want 12", chains, err)
	}
	sets, err := c.Sets(s.table)
	if err != nil || len(sets) != len(s.sets()) {
		t.Errorf("sets = %v, %v; want %d", sets, err, len(s.sets()))
	}
	rules, err := c.Rules(s.table, "")
	if err != nil || len(rules) != 38 || rules[0].Handle == 0 {
		t.Errorf("%d rules = %v, %v, want 38 with handles", len(rules), rules, err)
	}
	for _, x := range []Table{{IPv4, "absent"}, {IPv6, "sample"}} {
		chains, err := c.Chains(x)
		sets, err2 := c.Sets(x)
		rules, err3 := c.Rules(x, "")
		elems, err4 := c.Elements(x, "held")
		if there, err5 := c.HasTable(x); len(chains)+len(sets)+len(rules)+len(elems) > 0 || there || errors.Join(err, err2, err3, err4, err5) != nil {
			t.Errorf("missing table %s: chains = %v, sets = %v, rules = %v, elements = %v, error = %v; want none", x, chains, sets, rules, elems, errors.Join(err, err2, err3, err4, err5))
		}
	}
}

// withoutHandle removes the attributes of a set that differ after each load: its handle and its
// number in the transaction.
func withoutHandle(body []byte) string {
	var b strings.Builder
	for a := nlsock.In(body); a.Next(); {
		if a.Kind != setHandle && a.Kind != setID {
			fmt.Fprintf(&b, "%d=%x ", a.Kind, a.Value)
		}
	}
	return b.String()
}

// TestKernelThatIsSilent sends requests to a kernel that does not answer. Each request must time
// out.
func TestKernelThatIsSilent(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fds[1]) }()
	s, err := nlsock.Over(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	s.Patience = time.Millisecond
	c := &Conn{sock: s, seq: 1, room: 1 << 20}
	defer func() { _ = c.Close() }()
	_, asked := c.Generation()
	var tx Tx
	tx.AddTable(Table{Family: IPv4, Name: "silent"})
	for _, err := range []error{asked, c.Commit(&tx)} {
		if err == nil || !strings.Contains(err.Error(), "the kernel has not answered") {
			t.Error(err)
		}
	}
}
