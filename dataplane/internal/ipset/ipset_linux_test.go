package ipset

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"vipd/dataplane/internal/inet"
)

func open(t *testing.T) *Conn {
	t.Helper()
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// add adds elements to a set, as iptables rules would.
func add(t *testing.T, set string, entries map[Element]bool) {
	t.Helper()
	var lines strings.Builder
	for e := range entries {
		protocol := map[Protocol]string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}[e.Proto]
		fmt.Fprintf(&lines, "add -exist %s %s,%s:%d,%s\n", set, e.Addr, protocol, e.Port, e.Second)
	}
	cmd := exec.Command("ipset", "restore")
	cmd.Stdin = strings.NewReader(lines.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ipset restore: %v\n%s", err, out)
	}
}

func randomAddr(r *rand.Rand, family inet.Family) netip.Addr {
	if family == inet.IPv4 {
		return netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + r.IntN(30))})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(1 + r.IntN(30))})
}

func randomEntry(r *rand.Rand, family inet.Family) Element {
	return Element{Addr: randomAddr(r, family), Proto: []Protocol{TCP, UDP, SCTP}[r.IntN(3)], Port: uint16(1 + r.IntN(4)), Second: randomAddr(r, family)}
}

// TestHistories adds random elements as iptables rules would, and deletes some of them with this
// package. Each set, IPv4 or IPv6, must always equal a map that gets the same changes.
func TestHistories(t *testing.T) {
	empty(t)
	c := open(t)
	for _, family := range []inet.Family{inet.IPv4, inet.IPv6} {
		t.Run(string(family), func(t *testing.T) {
			if err := c.CreateTimed("vipd-test", HashIPPortIP, family); errors.Is(err, ErrUnsupported) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(7, uint64(len(family))))
			model := map[Element]bool{}
			for range 40 {
				added, deleted := map[Element]bool{}, map[Element]bool{}
				for range r.IntN(30) {
					added[randomEntry(r, family)] = true
				}
				for range r.IntN(20) {
					deleted[randomEntry(r, family)] = true
				}
				maps.Copy(model, added)
				for e := range deleted {
					delete(model, e)
				}
				add(t, "vipd-test", added)
				if err := c.Delete("vipd-test", slices.Collect(maps.Keys(deleted))); err != nil {
					t.Fatal(err)
				}
				check(t, c, "vipd-test", family, model)
				e := randomEntry(r, family)
				if has, err := c.Has("vipd-test", e); err != nil || has != model[e] {
					t.Fatalf("Has(%v) = %t, %v; want %t", e, has, err, model[e])
				}
			}
			if err := errors.Join(c.Destroy("vipd-test"), c.Destroy("vipd-test")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func check(t *testing.T, c *Conn, set string, family inet.Family, want map[Element]bool) {
	t.Helper()
	got, err := c.List(set)
	if err != nil {
		t.Fatal(err)
	}
	header, err := c.Header(set)
	if err != nil || header != (Header{Kind: HashIPPortIP, Family: family, Timed: true, Elements: len(want)}) {
		t.Fatalf("header = %+v, %v; want %d entries", header, err, len(want))
	}
	slices.SortFunc(got, Element.Compare)
	wanted := slices.SortedFunc(maps.Keys(want), Element.Compare)
	if !slices.Equal(got, wanted) {
		t.Fatalf("elements of the set = %v\nwant %v", got, wanted)
	}
}

// TestManyEntries adds more elements than fit into a message or into a set with the default maximum
// size. All elements must be stored.
func TestManyEntries(t *testing.T) {
	empty(t)
	c := open(t)
	if err := c.CreateTimed("vipd-test", HashIPPortIP, inet.IPv6); err != nil {
		t.Fatal(err)
	}
	want := map[Element]bool{}
	for i := range 70_000 {
		a := netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})
		want[Element{Addr: a, Proto: TCP, Port: uint16(1 + i>>16), Second: a}] = true
	}
	add(t, "vipd-test", want)
	check(t, c, "vipd-test", inet.IPv6, want)
	if err := c.Delete("vipd-test", slices.Collect(maps.Keys(want))); err != nil {
		t.Fatal(err)
	}
	check(t, c, "vipd-test", inet.IPv6, nil)
}

func TestErrors(t *testing.T) {
	empty(t)
	c := open(t)
	if err := c.CreateTimed("vipd-timed", HashIPPortIP, inet.IPv4); err != nil {
		t.Fatal(err)
	}
	for set, kind := range map[string]string{"vipd-plain": "hash:ip,port,ip", "vipd-test": "hash:ip"} {
		if out, err := exec.Command("ipset", "create", set, kind).CombinedOutput(); err != nil {
			t.Fatalf("ipset create: %v: %s", err, out)
		}
	}
	if out, err := exec.Command("iptables", "-A", "INPUT", "-m", "set", "--match-set", "vipd-test", "dst", "-j", "DROP").CombinedOutput(); err != nil {
		t.Skipf("iptables does not work here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("iptables", "-F", "INPUT").Run() })
	_, listErr := c.List("vipd-none")
	_, headerErr := c.Header("vipd-none")
	for _, e := range []struct {
		name      string
		got, want error
	}{
		{"again", c.CreateTimed("vipd-timed", HashIPPortIP, inet.IPv4), nil},
		{"another kind", c.CreateTimed("vipd-test", HashIPPortIP, inet.IPv4), ErrDifferent},
		{"another family", c.CreateTimed("vipd-timed", HashIPPortIP, inet.IPv6), ErrDifferent},
		{"one that is not timed", c.CreateTimed("vipd-plain", HashIPPortIP, inet.IPv4), ErrDifferent},
		{"in use", c.Destroy("vipd-test"), ErrInUse},
		{"list absent", listErr, ErrNotFound},
		{"header absent", headerErr, ErrNotFound},
		{"delete from absent", c.Delete("vipd-none", []Element{randomEntry(rand.New(rand.NewPCG(1, 1)), inet.IPv4)}), ErrNotFound},
		{"no such kind", c.CreateTimed("vipd-other", "hash:nonsense", inet.IPv4), ErrUnsupported},
	} {
		if !errors.Is(e.got, e.want) {
			t.Errorf("%s: error = %v, want %v", e.name, e.got, e.want)
		}
	}
}
