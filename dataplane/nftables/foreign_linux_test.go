package nftables

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/nft"
	"vipd/test/fake"
	"vipd/test/lab"
	"vipd/test/wait"
)

// foreignHistory is a dataplane, and a simulated program that damages its table before some
// changes.
type foreignHistory struct {
	*testing.T
	r    *rand.Rand
	d    *Dataplane
	want map[balancer.Key]*balancer.Frontend
	// rules holds each chain's rules when it first appeared in an undamaged table.
	rules map[string]string
}

// TestForeignHistories damages the table before some changes. After a change, the table must be
// correct, or Intact must report the damage and a comparison must repair the table.
func TestForeignHistories(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	h := &foreignHistory{T: t, rules: map[string]string{}}
	for seed := range uint64(wait.Soak(3, 100)) {
		h.r, h.want = rand.New(rand.NewPCG(seed, 9)), map[balancer.Key]*balancer.Frontend{}
		d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: 0x8000})
		if err != nil {
			t.Fatal(err)
		}
		h.d = d
		h.repair()
		for step := range 30 {
			damage := ""
			if step > 10 && h.r.IntN(2) == 0 {
				damage = h.damage()
			}
			at := fmt.Sprintf("seed %d step %d, after %q", seed, step, damage)
			err := d.Apply(t.Context(), h.edit())
			if err != nil && damage == "" {
				t.Fatalf("%s: %v", at, err)
			}
			reason := h.intact()
			switch {
			case reason != "" && damage == "":
				t.Fatalf("%s: Intact = %s, want no reason", at, reason)
			case reason != "" || err != nil:
				h.repair()
			}
			h.check(at)
		}
		if err := d.Close(context.Background(), false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLargeEdits changes many frontends in one batch. No transaction may have many more elements
// than maxBatchElements.
func TestLargeEdits(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	h := &foreignHistory{T: t, rules: map[string]string{}, want: map[balancer.Key]*balancer.Frontend{}}
	d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: 0x8000})
	if err != nil {
		t.Fatal(err)
	}
	h.d = d
	const frontends = 100
	for i := range frontends {
		f := fake.Frontend(fmt.Sprintf("10.96.1.%d:80", i))
		f.Scheduler = balancer.SourceHash
		h.want[f.Key] = f
	}
	y := d.families[0]
	before := y.epoch
	h.repair()
	slots := 0
	for _, f := range y.fronts {
		slots += len(f.slots)
	}
	if made := y.epoch - before; len(y.fronts) != frontends || slots <= 2*maxBatchElements || made < uint64(slots/maxBatchElements) {
		t.Errorf("frontends = %d, slots = %d, transactions = %d; want all frontends in several transactions", len(y.fronts), slots, made)
	}
	if err := d.Close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
}

// edit returns random changes to four frontends.
func (h *foreignHistory) edit() (batch []dataplane.Change) {
	schedulers := []balancer.Scheduler{balancer.RoundRobin, balancer.Random, balancer.SourceHash}
	f := fake.Frontend(fmt.Sprintf("10.96.0.%d:80", 1+h.r.IntN(4)))
	if h.r.IntN(4) == 0 {
		f = fake.Frontend("10.96.0.5:7000-7003") // its endpoints serve the ports 8080-8083
		f.Open = []balancer.PortRange{f.Key.Port}
	}
	f.Scheduler, f.Backends = schedulers[h.r.IntN(len(schedulers))], nil
	for i := range 1 + h.r.IntN(3) {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(h.r.IntN(3)), byte(i + 1)}), 8080)
		f.Backends = append(f.Backends, balancer.Backend{Addr: a, State: balancer.Active, Weight: 1})
	}
	c := dataplane.Change{Key: f.Key, Old: h.want[f.Key], New: f}
	if h.want[f.Key] = f; h.r.IntN(5) == 0 {
		c.New = nil
		delete(h.want, f.Key)
	}
	return []dataplane.Change{c}
}

// damage changes the table as another program could. It returns a description of the change.
func (h *foreignHistory) damage() string {
	h.Helper()
	scripts := []string{"flush ruleset", "delete table ip vipd", "flush table ip vipd", "flush map ip vipd eps", "flush map ip vipd frontends", "flush map ip vipd choices",
		"add element ip vipd choices { 0:63 : goto unserved }", "add element ip vipd choices { ffff:ffff : goto unserved }", "add element ip vipd choices { * : goto unserved }",
		"add element ip vipd choices { ffff:fffe : goto unserved }",
		"add chain ip vipd a\nadd chain ip vipd b\nadd rule ip vipd b jump a\nadd chain ip vipd c\nadd rule ip vipd c jump b\nadd chain ip vipd d\nadd rule ip vipd d jump c",
		"flush map ip vipd frontends\nadd element ip vipd frontends { 10.96.0.1 . tcp . 80 : 0:0, 10.96.0.2 . tcp . 80 : 0:0, 10.96.0.3 . tcp . 80 : 0:0 }",
		"flush map ip vipd digests", "flush map ip vipd range-targets",
		"add element ip vipd range-targets { 10.96.0.5 . tcp . 458759003 . 7009 : 80 }"}
	for _, name := range h.chains() {
		scripts = append(scripts, "flush chain ip vipd "+name, "insert rule ip vipd "+name+" accept")
		if base := slices.Contains([]string{"prerouting", "output", clearing}, name); !base {
			scripts = append(scripts, fmt.Sprintf("add element ip vipd choices { 0:%x : goto %s }\nflush map ip vipd frontends", 64+h.r.IntN(1<<15), name))
		}
	}
	script := scripts[h.r.IntN(len(scripts))]
	load(h, script+"\n")
	return script
}

func (h *foreignHistory) chains() (names []string) {
	h.Helper()
	for _, m := range regexp.MustCompile(`(?m)^\tchain (\S+) `).FindAllStringSubmatch(h.listed(), -1) {
		names = append(names, m[1])
	}
	return names
}

func (h *foreignHistory) listed() string {
	h.Helper()
	out, err := exec.Command("nft", "-s", "-t", "list", "ruleset", "ip").Output()
	if err != nil {
		h.Fatal(err)
	}
	return string(out)
}

// intact returns the reason from Intact. It makes Intact check again, even immediately after a
// check.
func (h *foreignHistory) intact() string {
	h.Helper()
	for _, y := range h.d.families {
		y.table.Next = time.Time{}
	}
	reason, err := h.d.Intact(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	return reason
}

// repair observes the table, and applies all frontends that differ, as the engine does.
func (h *foreignHistory) repair() {
	h.Helper()
	seen, err := h.d.Observe(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	var batch []dataplane.Change
	for key, f := range h.want {
		if seen.Digests[key] != h.d.Digest(f) || len(seen.Damage) > 0 {
			batch = append(batch, dataplane.Change{Key: key, New: f})
		}
	}
	for key := range seen.Digests {
		if h.want[key] == nil {
			batch = append(batch, dataplane.Change{Key: key})
		}
	}
	if err := h.d.Apply(h.Context(), batch); err != nil {
		h.Fatal(err)
	}
	reason := h.intact()
	seen, err = h.d.Observe(h.Context())
	if reason != "" || err != nil || len(seen.Damage) > 0 {
		h.Fatalf("after the repair: Intact = %q, damage = %q, error = %v; want none", reason, seen.Damage, err)
	}
}

// check checks that the kernel maps each frontend to its backends, and that all chains have their
// original rules.
func (h *foreignHistory) check(at string) {
	h.Helper()
	listed := h.listed()
	slots := map[string]int{} // slots of each chain that belongs to a single frontend
	for key, f := range h.want {
		slots[render(f).choice.chain(key)] = len(render(f).slots)
	}
	for _, name := range h.chains() {
		_, body, _ := strings.Cut(listed, "chain "+name+" {")
		body, _, _ = strings.Cut(body, "\n\t}")
		if name = fmt.Sprint(name, " of ", slots[name]); h.rules[name] == "" {
			h.rules[name] = body
		}
		if body != h.rules[name] {
			h.Fatalf("%s: chain %s =\n%s\nwant\n%s", at, name, body, h.rules[name])
		}
	}
	y := h.d.families[0]
	k, err := y.readAll()
	if err != nil {
		h.Fatal(err)
	}
	for name, c := range y.chains {
		if c.users > 0 && name != unserved && (c.choice == choice{} || c.number == 0 && name != clearing && c.choice.ports == 0) {
			h.Fatalf("%s: chain %s would be written again, want it known: %+v", at, name, *c)
		}
	}
	found := y.frontsOf(&k)
	if len(found) != len(h.want) {
		h.Fatalf("%s: frontends = %d, want %d", at, len(found), len(h.want))
	}
	for key, f := range h.want {
		form := render(f)
		got, want := slices.SortedFunc(slices.Values(found[key].backends()), netip.AddrPort.Compare), slices.SortedFunc(slices.Values(form.slots), netip.AddrPort.Compare)
		if !maps.Equal(found[key].targets, form.targets) {
			h.Fatalf("%s: ports of %s = %v, want %v", at, key, found[key].targets, form.targets)
		}
		if !slices.Equal(got, want) || found[key].chain != form.choice.chain(key) || found[key].stored != dnat.Digest(f) {
			h.Fatalf("%s: chain and backends of %s = %s, %v; want %s, %v", at, key, found[key].chain, got, form.choice.chain(key), want)
		}
	}
}

func (f *front) backends() []netip.AddrPort {
	all := slices.Clone(f.eps)
	for _, id := range f.slots {
		all = append(all, f.ids[id])
	}
	return all
}

// TestComparesAfterFailedTransactions makes transactions fail. After a refused transaction, Intact
// must still detect damage. If a transaction may have taken effect, Intact must return a reason, so
// the table is compared.
func TestComparesAfterFailedTransactions(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: 0x8000})
	if err != nil {
		t.Fatal(err)
	}
	h := &foreignHistory{T: t, d: d, want: map[balancer.Key]*balancer.Frontend{}}
	f := fake.Frontend("10.96.0.1:80")
	h.want[f.Key] = f
	h.repair()
	y := d.families[0]
	fails := func() {
		var tx nft.Tx
		tx.AddTable(nft.Table{Family: 99, Name: "refused"})
		y.mu.Lock()
		defer y.mu.Unlock()
		if err := y.commit(t.Context(), &tx); err == nil {
			t.Error("commit = nil, want an error")
		}
	}
	fails()
	if reason := h.intact(); reason != "" {
		t.Errorf("after a refused transaction: Intact = %s, want no reason", reason)
	}
	load(t, "delete table ip vipd")
	if h.intact() == "" {
		t.Error("after a refused transaction: Intact = \"\", want a reason about the missing table")
	}
	h.repair()
	if err := y.table.Conn.Close(); err != nil {
		t.Fatal(err)
	}
	fails()
	if h.intact() == "" {
		t.Error("after a transaction with an unknown outcome: Intact = \"\", want a reason")
	}
	load(t, "delete table ip vipd")
}

// TestOtherVersion starts while the kernel has an earlier version's table, which has other maps.
// The dataplane must replace this table.
func TestOtherVersion(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft")
	load(t, `table ip vipd {
		map svc { typeof ip daddr . meta l4proto . th dport : verdict; }
		chain random-1 { accept; }
		chain prerouting { type nat hook prerouting priority -105; ip daddr . meta l4proto . th dport vmap @svc; }
	}
	add element ip vipd svc { 10.96.0.9 . tcp . 80 : goto random-1 }
`)
	h := &foreignHistory{T: t, rules: map[string]string{}, want: map[balancer.Key]*balancer.Frontend{}}
	d, err := New(Options{Log: slog.New(slog.DiscardHandler), Mark: 0x8000})
	if err != nil {
		t.Fatal(err)
	}
	h.d = d
	f := fake.Frontend("10.96.0.1:80")
	f.Backends = []balancer.Backend{{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), State: balancer.Active, Weight: 1}}
	h.want[f.Key] = f
	h.repair()
	h.check("over another version's table")
	if listed := h.listed(); strings.Contains(listed, "svc") {
		t.Errorf("table = %s, want a table without the map svc", listed)
	}
	if err := d.Close(context.Background(), false); err != nil {
		t.Fatal(err)
	}
}
