package ipvs

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/test/wait"
)

func reopen(t *testing.T, dir string) *ledger {
	t.Helper()
	l, err := openLedger(dir, "boot", "namespace")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLedgerHistories changes and saves a ledger at random. Reading the file must result in the
// same ledger, and the file must stay small.
func TestLedgerHistories(t *testing.T) {
	for seed := range uint64(wait.Soak(3, 10)) {
		r := rand.New(rand.NewPCG(seed, 7))
		dir := filepath.Join(t.TempDir(), "run")
		l := reopen(t, dir)
		want := map[balancer.Key]record{}
		for range 1500 {
			k := key(r.IntN(20))
			if r.IntN(3) > 0 {
				rec := record{drain: time.Duration(r.IntN(3)) * time.Second, bounded: r.IntN(2) == 0}
				if r.IntN(3) == 0 {
					rec.until = time.UnixMilli(int64(1 + r.IntN(1e9)))
				}
				l.set(k, rec)
				want[k] = rec
			} else {
				l.drop(k)
				delete(want, k)
			}
			if r.IntN(20) == 0 {
				l.setTimeouts([3]timeoutChange{{time.Duration(r.IntN(3)) * time.Second, time.Hour}, {}, {}})
			}
			if r.IntN(4) > 0 {
				continue
			}
			if err := l.save(); err != nil {
				t.Fatal(err)
			}
			switch r.IntN(50) {
			case 0: // an incomplete line, as left by a full disk
				text, err := os.ReadFile(l.path)
				if err == nil && len(text) > 0 {
					err = os.WriteFile(l.path, append(text, "+ 10.96.9.9:80/tcp 0 0"...), 0o644)
				}
				if err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			case 1:
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				if r.IntN(2) == 0 { // sometimes an entry is also pending when renew finds that the file is missing
					l.set(key(0), record{drain: time.Minute, until: time.UnixMilli(1)})
					want[key(0)] = l.entries[key(0)]
				}
				if err := l.renew(); err != nil {
					t.Fatal(err)
				}
			}
			again := reopen(t, dir)
			same := func(a, b record) bool { return a.line(key(0)) == b.line(key(0)) }
			if !maps.EqualFunc(again.entries, want, same) || again.timeouts != l.timeouts {
				t.Fatalf("seed %d: ledger from the file = %v, timeouts = %v; want %v, %v", seed, again.entries, again.timeouts, want, l.timeouts)
			}
			if again.lines > 2*len(want)+maxObsoleteLines {
				t.Fatalf("seed %d: lines = %d, entries = %d; want at most twice as many lines", seed, again.lines, len(want))
			}
			l = again
		}
	}
}

// TestLedgerPassesOverWhatIsNoLine inserts invalid text into a ledger. All complete, valid lines
// must still be read.
func TestLedgerPassesOverWhatIsNoLine(t *testing.T) {
	for _, junk := range []string{"\n", "+ 10.96.0.1:80/tcp 0 0 - 00000000\n", strings.Repeat("x", 1<<17) + "\n", "+ 10.96.0.1:80/tcp 60"} {
		dir := t.TempDir()
		l := reopen(t, dir)
		l.set(key(0), record{})
		if err := l.save(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, ledgerFile)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, junk...)
		if strings.HasSuffix(junk, "\n") {
			text = append(text, record{}.line(key(1))...)
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		l = reopen(t, dir)
		l.set(key(2), record{})
		if err := l.save(); err != nil {
			t.Fatal(err)
		}
		l = reopen(t, dir)
		if n := 2 + strings.Count(junk, "\n"); len(l.entries) != n || !l.owns(key(0)) || !l.owns(key(2)) {
			t.Errorf("ledger with text %.40q: entries = %v, want %d", junk, l.entries, n)
		}
	}
}

// TestLedgerOfAnother reads ledgers from another boot or network namespace, or with another format.
// They must be treated as empty.
func TestLedgerOfAnother(t *testing.T) {
	dir := t.TempDir()
	l := reopen(t, dir)
	l.set(key(0), record{})
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"other", "namespace"}, {"boot", "other"}} {
		if l, err := openLedger(dir, c[0], c[1]); err != nil || len(l.entries) > 0 {
			t.Errorf("ledger of %v = %v, %v; want no entries", c, l.entries, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ledgerFile), []byte("{}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if l := reopen(t, dir); len(l.entries) > 0 {
		t.Errorf("ledger of another format = %v, want no entries", l.entries)
	}
	other, err := openLedger(dir, "other", "namespace")
	if err != nil {
		t.Fatal(err)
	}
	other.set(key(1), record{})
	if err := other.save(); err != nil {
		t.Fatal(err)
	}
	if l, _ := openLedger(dir, "other", "namespace"); len(l.entries) != 1 {
		t.Errorf("ledger that replaced another format = %v, want one entry", l.entries)
	}
}

// TestLedgerOneChangeIsOneLine changes one of 10,000 entries. Saving the ledger must write only one
// line.
func TestLedgerOneChangeIsOneLine(t *testing.T) {
	dir := t.TempDir()
	l := reopen(t, dir)
	for n := range 10_000 {
		l.set(balancer.Key{Addr: key(0).Addr, Port: balancer.PortRange(1 + n), Proto: balancer.TCP}, record{drain: time.Minute})
	}
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(l.path)
	if err != nil {
		t.Fatal(err)
	}
	l.set(key(1), record{})
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(l.path)
	if err != nil || after.Size()-before.Size() > 100 || !os.SameFile(before, after) {
		t.Errorf("file size after a change = %d, previously %d, error = %v; want the same file with a few more bytes", after.Size(), before.Size(), err)
	}
}

// TestTimeouts sets the kernel's timeouts and restores them. If another program has changed a
// timeout, vipd must not restore it.
func TestTimeouts(t *testing.T) {
	ctx := context.Background()
	k, dir := newKernel(), t.TempDir()
	was, _ := k.Timeouts(ctx)
	set := func(want ipvsnl.Timeouts) {
		t.Helper()
		if err := setTimeouts(ctx, k, reopen(t, dir), want); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want ipvsnl.Timeouts) {
		t.Helper()
		if got, _ := k.Timeouts(ctx); got != want {
			t.Errorf("timeouts = %+v, want %+v", got, want)
		}
	}
	set(ipvsnl.Timeouts{TCP: time.Minute, UDP: time.Second})
	is(ipvsnl.Timeouts{TCP: time.Minute, TCPFin: was.TCPFin, UDP: time.Second})
	set(ipvsnl.Timeouts{TCP: time.Hour, UDP: time.Second})
	is(ipvsnl.Timeouts{TCP: time.Hour, TCPFin: was.TCPFin, UDP: time.Second})
	set(ipvsnl.Timeouts{TCP: time.Hour})
	is(ipvsnl.Timeouts{TCP: time.Hour, TCPFin: was.TCPFin, UDP: was.UDP})
	if err := k.SetTimeouts(ctx, ipvsnl.Timeouts{TCP: 2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	set(ipvsnl.Timeouts{})
	is(ipvsnl.Timeouts{TCP: 2 * time.Hour, TCPFin: was.TCPFin, UDP: was.UDP})
	if l := reopen(t, dir); !l.empty() {
		t.Errorf("timeouts in the ledger = %+v, want none", l.timeouts)
	}
}

// TestTrackedTimeout raises the kernel's IPVS timeout to conntrack's timeout. It must never be
// lower than before vipd started, and must be restored while foreign virtual servers exist.
func TestTrackedTimeout(t *testing.T) {
	p := start(t, newKernel(), t.TempDir())
	var tracked time.Duration
	p.trackedTimeout = func(context.Context) time.Duration { return tracked }
	is := func(want time.Duration) {
		t.Helper()
		p.observe()
		if got, _ := p.k.Timeouts(t.Context()); got.TCP != want {
			t.Errorf("conntrack timeout %s: IPVS timeout = %s, want %s", tracked, got.TCP, want)
		}
	}
	const kernels, longest = 15 * time.Minute, 1 << 60
	for _, step := range []struct{ tracked, want time.Duration }{
		{time.Minute, kernels},
		{120 * time.Hour, 120 * time.Hour},
		{120 * time.Hour, 120 * time.Hour},
		{24 * time.Hour, 24 * time.Hour},
		{0, kernels},
		{longest, ipvsnl.MaxIdle},
		{time.Minute, kernels},
	} {
		tracked = step.tracked
		is(step.want)
	}
	if !p.ledger.empty() {
		t.Errorf("timeouts in the ledger = %+v, want none", p.ledger.timeouts)
	}
}
