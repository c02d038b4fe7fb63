package guard

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/test/lab"
	testwait "vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

func nftables(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command("nft", args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s\n%s", strings.Join(args, " "), err, out, input)
	}
	return string(out)
}

// TestPlansLoad loads rendered tables with nft, lists them, and loads the listings. nft must accept
// both.
func TestPlansLoad(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	for _, m := range []dataplane.Needs{{}, {Forward: true}, {Forward: true, Marked: true, TranslatesAll: true, Resets: true}, {Forward: true, LocalIn: true}} {
		frontends := append(examples(), frontend("10.96.0.60:80", forward(balancer.DRForward)), frontend("10.96.0.61:80", sources("10.0.0.0/8", "10.1.0.0/16")))
		var b strings.Builder
		for _, f := range inet.Families() {
			w := modelWanted(Options{Mode: m, MasqueradeBit: 14}, f, frontends, []Interface{{"lo", 1, 65536}, {"eth1", 3, 1500}})
			w.own(map[inet.Family]netip.Addr{inet.IPv4: addrOf("10.96.0.1"), inet.IPv6: addrOf("fd00:96::1")}[f], 1)
			w.render(&b)
		}
		nftables(t, b.String(), "-f", "-")
		nftables(t, "flush ruleset\n"+nftables(t, "", "list", "ruleset"), "-f", "-")
		nftables(t, "", "flush", "ruleset")
	}
}

// history is a guard in the kernel's nf_tables, with the frontends that are wanted and applied.
// Tests change these frontends at random.
type history struct {
	*testing.T
	r             *rand.Rand
	conn          *nft.Conn
	g             *familyGuard
	want, applied map[balancer.Key]*balancer.Frontend
	held, owned   map[netip.Addr]bool
}

// restart replaces the guard with a new guard, which uses the existing table.
func (h *history) restart(m dataplane.Needs) {
	o := Options{Mode: m, MasqueradeBit: 14, Log: slog.New(slog.DiscardHandler)}
	w := newWanted(inet.IPv4, o)
	h.g = newFamily(w, newAcceptor(inet.IPv4, o))
	h.g.table.Conn, h.g.accept.conn = h.conn, h.conn
	h.g.accept.find = func(context.Context) (filterTool, error) { return nil, errors.New("there is no iptables here") }
	for a := range h.held {
		w.hold(a, 1)
	}
	for a := range h.owned {
		w.own(a, 1)
	}
	for _, f := range h.want {
		w.want(f, 1, false)
	}
	for _, f := range h.applied {
		w.want(f, 1, true)
	}
}

// someModes returns the modes between which histories switch.
func someModes() []dataplane.Needs {
	return []dataplane.Needs{{}, {Forward: true}, {Forward: true, Marked: true, TranslatesAll: true, Resets: true}, {Forward: true, LocalIn: true}}
}

// specified returns the expected entries of each set. It computes them from scratch.
func (h *history) specified() map[string]entries {
	all := map[string]entries{}
	for _, s := range setDefs() {
		collect := func(frontends map[balancer.Key]*balancer.Frontend) entries {
			all := entries{}
			for _, f := range frontends {
				for _, e := range s.entries(f) {
					all[e] = true
				}
			}
			return all
		}
		switch {
		case s.name == heldSet:
			all[s.name] = addresses(h.held, h.owned)
		case s.name == ownedSet:
			all[s.name] = addresses(h.owned)
		case s.entries == nil:
		case s.early:
			all[s.name] = collect(h.want)
			maps.Copy(all[s.name], collect(h.applied))
		default:
			both := collect(h.applied)
			all[s.name] = collect(h.want)
			maps.DeleteFunc(all[s.name], func(e setEntry, _ bool) bool { return !both[e] })
		}
	}
	plain := all[frontendsSet]
	for e := range plain {
		if h.g.mode.Marked || all[specialSet][e] {
			delete(plain, e)
		}
	}
	maps.DeleteFunc(all[clampsSet], func(e setEntry, _ bool) bool { // the smallest of several limits applies
		for x := range all[clampsSet] {
			if placeOnly(x) == placeOnly(e) && x.MSS < e.MSS {
				return true
			}
		}
		return false
	})
	if !h.g.mode.Resets {
		clear(all[deadSet])
	}
	if !h.g.mode.LocalIn {
		clear(all[quietSet])
	}
	maps.DeleteFunc(all[allowedSet], func(e setEntry, _ bool) bool { // the kernel refuses overlapping networks
		for wider := range all[allowedSet] {
			if placeOnly(wider) == placeOnly(e) && wider.Net.Bits() < e.Net.Bits() && wider.Net.Contains(e.Net.Addr()) {
				return true
			}
		}
		return false
	})
	return all
}

// check compares the kernel's sets with the specified entries, and the kernel's rules with newly
// written rules.
func (h *history) check(seed uint64, step int) {
	h.Helper()
	if len(h.want)+len(h.applied)+len(h.held)+len(h.owned) == 0 {
		if there, err := h.conn.HasTable(h.g.layout.table); there || err != nil {
			h.Fatalf("seed %d step %d: table exists = %t, error = %v; want no table after the cleanup", seed, step, there, err)
		}
		return
	}
	for name, want := range h.specified() {
		list, err := h.g.List(name)
		if err != nil {
			h.Fatal(err)
		}
		got := entries{}
		for _, e := range list {
			got[e] = true
		}
		if !maps.Equal(got, want) {
			h.Fatalf("seed %d step %d: set %s =\n%v\nwant\n%v", seed, step, name, got, want)
		}
	}
	h.checkLimits(seed, step)
	h.checkRanges(seed, step)
	before := nftables(h.T, "", "-s", "-t", "list", "ruleset", "ip")
	var tx nft.Tx // includes rules about sets that are now empty, because the last write left them
	h.g.layout.write(&tx, h.g.mode, h.g.bits, h.g.written)
	if err := h.g.table.Commit(&tx); err != nil {
		h.Fatal(err)
	}
	if after := nftables(h.T, "", "-s", "-t", "list", "ruleset", "ip"); after != before {
		h.Fatalf("seed %d step %d: chains =\n%s\nwant\n%s", seed, step, before, after)
	}
	if reason, err := h.g.intact(h.Context()); reason != "" || err != nil {
		h.Fatalf("seed %d step %d: intact = %q, %v; want no reason", seed, step, reason, err)
	}
}

// checkLimits checks the chains, meters and maps of limits. The map must send each address and port
// with limits to its service's chain. No other chains or meters may exist.
func (h *history) checkLimits(seed uint64, step int) {
	h.Helper()
	places, names := map[setEntry]string{}, map[string]bool{}
	for _, from := range []map[balancer.Key]*balancer.Frontend{h.applied, h.want} { // wanted frontends have priority
		for _, f := range from {
			if h.g.mode.Forward && isLimited(f) && !f.Withdrawn {
				places[placeOf(f.Key)] = limiterOf(f).chain
			}
		}
	}
	for _, chain := range places {
		names[chain] = true
	}
	got, err := h.g.readPlaces()
	if err != nil || !maps.Equal(got, places) {
		h.Fatalf("seed %d step %d: map of limits = %v, %v; want %v", seed, step, got, err, places)
	}
	found, err := h.conn.Chains(h.g.layout.table)
	if err != nil {
		h.Fatal(err)
	}
	for _, c := range found {
		if strings.HasPrefix(c.Name, limitChain) && !names[c.Name] {
			h.Fatalf("seed %d step %d: chain %s exists, want it deleted", seed, step, c.Name)
		}
		delete(names, c.Name)
	}
	if len(names) > 0 {
		h.Fatalf("seed %d step %d: chains %v are missing, want them to exist", seed, step, names)
	}
	meters := map[string]bool{}
	for chain, l := range h.g.limits.chains {
		text := nftables(h.T, "", "list", "chain", "ip", tableName, chain)
		for _, m := range l.meters() {
			meters[m.set.Name] = true
			if !strings.Contains(text, m.set.Name) {
				h.Fatalf("seed %d step %d: chain =\n%s\nwant the meter %s", seed, step, text, m.set.Name)
			}
		}
	}
	sets, err := h.conn.Sets(h.g.layout.table)
	if err != nil {
		h.Fatal(err)
	}
	for _, s := range sets {
		if strings.HasPrefix(s.Name, limitMeter) && !meters[s.Name] {
			h.Fatalf("seed %d step %d: meter %s exists, want it deleted", seed, step, s.Name)
		}
	}
}

func (h *history) checkRanges(seed uint64, step int) {
	h.Helper()
	var r openRanges
	for _, f := range h.want {
		r.want(f, 1, false)
	}
	for _, f := range h.applied {
		r.want(f, 1, true)
	}
	r.write(&nft.Tx{}, h.g.layout)
	got, err := h.g.readRanges()
	if err != nil || !sameRanges(got, r.have) {
		h.Fatalf("seed %d step %d: open ports of ranges = %v, %v; want %v", seed, step, got, err, r.have)
	}
}

// damage changes the table as another program might, and checks that the guard detects the change.
func (h *history) damage(seed uint64, step int) {
	h.Helper()
	if !h.g.ready {
		return
	}
	scripts := []string{
		"delete table ip vipd-guard", "flush table ip vipd-guard", "flush chain ip vipd-guard by-policy", "insert rule ip vipd-guard input accept",
		"add chain ip vipd-guard input { policy drop; }", "add table ip vipd-guard { flags dormant; }",
		"add element ip vipd-guard held { 192.0.2.200 }", "add element ip vipd-guard served { 192.0.2.200 . tcp . 80 }",
		"add element ip vipd-guard clamps { 192.0.2.200 . tcp . 80 : 1250 }",
	}
	if len(h.g.ranges.have) > 0 {
		scripts = append(scripts, "flush map ip vipd-guard ranges", "flush map ip vipd-guard ranges")
	}
	nftables(h.T, scripts[h.r.IntN(len(scripts))]+"\n", "-f", "-")
	h.g.table.Next = time.Time{}
	if reason, err := h.g.intact(h.Context()); reason == "" || err != nil {
		h.Fatalf("seed %d step %d: Intact after damage returns no reason, want a reason; error = %v", seed, step, err)
	}
	h.g.resync()
}

// fail deletes the table just before a round. The round must fail or change nothing. It also checks
// that the guard then detects the missing table.
func (h *history) fail() {
	h.Helper()
	if !h.g.ready {
		return
	}
	nftables(h.T, "delete table ip vipd-guard\n", "-f", "-")
	edit(h.r, h.g.wanted, h.want)
	if h.g.prepare(h.Context()) != nil || h.g.finish(h.Context()) != nil || !h.g.ready {
		return
	}
	h.g.table.Next = time.Time{}
	if reason, err := h.g.intact(h.Context()); reason == "" && len(h.want)+len(h.applied)+len(h.held)+len(h.owned) > 0 {
		if there, _ := h.conn.HasTable(h.g.layout.table); !there {
			h.Fatalf("without the table: Intact = %q, %v; want a reason", reason, err)
		}
	}
	h.g.resync()
}

func newHistory(t *testing.T, seed uint64, conn *nft.Conn, m dataplane.Needs) *history {
	h := &history{
		T: t, r: rand.New(rand.NewPCG(seed, 5)), conn: conn, want: map[balancer.Key]*balancer.Frontend{},
		applied: map[balancer.Key]*balancer.Frontend{}, held: map[netip.Addr]bool{}, owned: map[netip.Addr]bool{},
	}
	h.restart(m)
	return h
}

func openTables(t *testing.T) *nft.Conn {
	t.Helper()
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestGuardHistories makes random changes to frontends, modes and interfaces. It also restarts the
// guard, damages the table, and makes rounds fail. After each step, the table must contain the
// expected entries and rules.
func TestGuardHistories(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	conn := openTables(t)
	for seed := range uint64(testwait.Soak(8, 100)) {
		h := newHistory(t, seed, conn, dataplane.Needs{})
		for step := range 30 {
			m := someModes()[h.r.IntN(4)]
			switch h.r.IntN(8) {
			case 0:
				h.restart(m)
			case 1:
				h.damage(seed, step)
			case 2:
				if h.g.setMode(m) {
					h.g.markStale()
				}
			case 3:
				h.g.setInterfaces([]Interface{{"eth0", 1, 1500}, {"eth1", 3, 1500 + h.r.IntN(2)}}[:1+h.r.IntN(2)], h.r.IntN(3) == 0)
				h.g.markStale()
			case 4:
				h.fail()
			}
			edit(h.r, h.g.wanted, h.want)
			toggle(h.r, h.held, 96, h.g.hold)
			toggle(h.r, h.owned, 97, h.g.own)
			if err := h.g.prepare(t.Context()); err != nil {
				t.Fatalf("seed %d step %d: prepare: %v", seed, step, err)
			}
			for _, f := range h.want {
				if err := h.g.restricts(f, false); (isRestricted(f) || h.g.isOwned(f)) && err != nil {
					t.Fatalf("seed %d step %d: after prepare: restricts(%s) = %v, want nil", seed, step, f.Key, err)
				}
			}
			if h.r.IntN(4) > 0 {
				for _, f := range h.applied {
					h.g.want(f, -1, true)
				}
				for _, f := range h.want {
					h.g.want(f, 1, true)
				}
				h.applied = maps.Clone(h.want)
			}
			if err := h.g.finish(t.Context()); err != nil {
				t.Fatalf("seed %d step %d: finish: %v", seed, step, err)
			}
			h.check(seed, step)
			for _, m := range h.g.members {
				for place, near := range m.near {
					for e := range near {
						if m.count[e]+m.asked[e] == 0 && !m.have[e] {
							t.Fatalf("seed %d step %d: set %s remembers %v at %v, want it forgotten: it is neither wanted nor in the kernel", seed, step, m.def.name, e, place)
						}
					}
				}
			}
		}
		if err := h.g.leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
