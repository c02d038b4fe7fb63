package ipset

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
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

func randomAddr(r *rand.Rand, family inet.Family) netip.Addr {
	if family == inet.IPv4 {
		return netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + r.IntN(30))})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(1 + r.IntN(30))})
}

func randomEntry(r *rand.Rand, kind Kind, family inet.Family) Entry {
	e := Entry{Addr: randomAddr(r, family)}
	if kind == HashIP {
		return e
	}
	e.Proto, e.Port = []Protocol{TCP, UDP, SCTP}[r.IntN(3)], uint16(1+r.IntN(4))
	bits := e.Addr.BitLen()
	switch kind {
	case HashIPPortIP:
		e.Net = netip.PrefixFrom(randomAddr(r, family), bits)
	case HashIPPortNet:
		e.Net, _ = randomAddr(r, family).Prefix(bits - r.IntN(6)*r.IntN(5))
	}
	return e
}

// TestHistories compares sets of every kind and both families with a map, over random adds and deletes.
func TestHistories(t *testing.T) {
	empty(t)
	c := open(t)
	for _, kind := range []Kind{HashIP, HashIPPort, HashIPPortIP, HashIPPortNet} {
		for _, family := range []inet.Family{inet.IPv4, inet.IPv6} {
			t.Run(fmt.Sprintf("%s %s", kind, family), func(t *testing.T) {
				if err := c.Create("vipd-test", kind, family); errors.Is(err, ErrUnsupported) {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				r := rand.New(rand.NewPCG(7, uint64(len(kind))))
				model := map[Entry]bool{}
				for range 40 {
					add, del := map[Entry]bool{}, map[Entry]bool{}
					for range r.IntN(30) {
						add[randomEntry(r, kind, family)] = true
					}
					for range r.IntN(20) {
						del[randomEntry(r, kind, family)] = true
					}
					maps.Copy(model, add)
					for e := range del {
						delete(model, e)
					}
					if err := errors.Join(c.Add("vipd-test", slices.Collect(maps.Keys(add))), c.Delete("vipd-test", slices.Collect(maps.Keys(del)))); err != nil {
						t.Fatal(err)
					}
					check(t, c, "vipd-test", kind, family, model)
				}
				if err := errors.Join(c.Destroy("vipd-test"), c.Destroy("vipd-test")); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func check(t *testing.T, c *Conn, set string, kind Kind, family inet.Family, want map[Entry]bool) {
	t.Helper()
	got, err := c.List(set)
	if err != nil {
		t.Fatal(err)
	}
	header, err := c.Header(set)
	if err != nil || header != (Header{Kind: kind, Family: family, Elements: len(want)}) {
		t.Fatalf("header %+v, %v; want %s with %d entries", header, err, kind, len(want))
	}
	slices.SortFunc(got, Entry.Compare)
	wanted := slices.SortedFunc(maps.Keys(want), Entry.Compare)
	if !slices.Equal(got, wanted) {
		t.Fatalf("got %v\nwant %v", got, wanted)
	}
}

// TestManyEntries passes every bound of one message, and the default bound of a set.
func TestManyEntries(t *testing.T) {
	empty(t)
	c := open(t)
	if err := c.Create("vipd-test", HashIPPort, inet.IPv6); err != nil {
		t.Fatal(err)
	}
	want := map[Entry]bool{}
	for i := range 70_000 {
		want[Entry{Addr: netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), Proto: TCP, Port: uint16(1 + i>>16)}] = true
	}
	if err := c.Add("vipd-test", slices.Collect(maps.Keys(want))); err != nil {
		t.Fatal(err)
	}
	check(t, c, "vipd-test", HashIPPort, inet.IPv6, want)
}

// TestPassing fills a set for passing entries beyond its bound: nearly all that come later take the places of others.
func TestPassing(t *testing.T) {
	empty(t)
	if _, err := exec.LookPath("ipset"); err != nil {
		t.Skip("needs ipset: apt-get install ipset")
	}
	c := open(t)
	p := Passing{Seconds: 600, Buckets: 64, Max: 256}
	for _, family := range []inet.Family{inet.IPv4, inet.IPv6} {
		set := "vipd-" + string(family)
		for range 2 { // the second finds it
			if err := c.CreatePassing(set, HashNetIface, family, p); errors.Is(err, ErrUnsupported) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Create(set, HashIP, family); !errors.Is(err, ErrDifferent) {
			t.Errorf("one of another kind: got %v, want %v", err, ErrDifferent)
		}
		last := 0
		for i := range 1000 {
			a := randomAddr(rand.New(rand.NewPCG(uint64(i), 1)), family).AsSlice()
			a[1], a[2] = byte(i), byte(i>>8)
			addr, _ := netip.AddrFromSlice(a)
			if exec.Command("ipset", "add", set, addr.String()+",eth0").Run() == nil && i >= 500 {
				last++
			}
		}
		h, err := c.Header(set)
		if err != nil || h.Kind != HashNetIface || h.Family != family || !h.Timed || h.Elements > 256 || h.Elements < 128 {
			t.Errorf("after 1000: %+v, %v", h, err)
		}
		if last < 400 {
			t.Errorf("of 500 after it was full, %d found a place", last)
		}
	}
}

func TestErrors(t *testing.T) {
	empty(t)
	c := open(t)
	if err := c.Create("vipd-test", HashIP, inet.IPv4); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("iptables", "-A", "INPUT", "-m", "set", "--match-set", "vipd-test", "dst", "-j", "DROP").CombinedOutput(); err != nil {
		t.Skipf("iptables does not work here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("iptables", "-F", "INPUT").Run() })
	if err := c.CreateTimed("vipd-timed", HashIP, inet.IPv4); err != nil {
		t.Fatal(err)
	}
	_, listErr := c.List("vipd-none")
	_, headerErr := c.Header("vipd-none")
	for _, e := range []struct {
		name      string
		got, want error
	}{
		{"again", c.Create("vipd-test", HashIP, inet.IPv4), nil},
		{"another kind", c.Create("vipd-test", HashIPPort, inet.IPv4), ErrDifferent},
		{"another family", c.Create("vipd-test", HashIP, inet.IPv6), ErrDifferent},
		{"timed again", c.CreateTimed("vipd-timed", HashIP, inet.IPv4), nil},
		{"one that is not timed", c.CreateTimed("vipd-test", HashIP, inet.IPv4), ErrDifferent},
		{"one that is timed", c.Create("vipd-timed", HashIP, inet.IPv4), ErrDifferent},
		{"in use", c.Destroy("vipd-test"), ErrInUse},
		{"list absent", listErr, ErrNotFound},
		{"header absent", headerErr, ErrNotFound},
		{"add to absent", c.Add("vipd-none", []Entry{{Addr: netip.MustParseAddr("10.0.0.1")}}), ErrNotFound},
		{"no such kind", c.Create("vipd-other", "hash:nonsense", inet.IPv4), ErrUnsupported},
	} {
		if !errors.Is(e.got, e.want) {
			t.Errorf("%s: got %v, want %v", e.name, e.got, e.want)
		}
	}
}
