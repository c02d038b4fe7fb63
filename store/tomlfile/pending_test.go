package tomlfile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/store"
	"vipd/store/statedir"
)

// bench is a source without Watch. The test runs each of its steps.
type bench struct {
	*testing.T
	dir   string
	state *statedir.Dir
	*watchRun
	outcomes []store.Outcome
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(b.dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) main() string { return filepath.Join(b.dir, "vipd.toml") }

// start starts a new process with the files of an earlier process.
func (b *bench) start() {
	b.state = statedir.New(filepath.Join(b.dir, "state"), func() {})
	s := New(Options{Main: b.main(), StateDir: b.state, Pended: func(_ *store.Pending, how store.Outcome, _ string) {
		b.outcomes = append(b.outcomes, how)
	}})
	s.loader.grace = 0
	b.watchRun = &watchRun{Source: s, follower: &follower{}}
	what := look{all: true}
	b.begin(&what)
	if err := b.step(what); err != nil {
		b.Fatal(err)
	}
}

// step checks the files like Watch.
func (b *bench) step(what look) error {
	err := b.pend(&what)
	b.load(what)
	b.keepGood()
	return err
}

func (b *bench) reload(r Reload) error { return b.step(look{all: true, forced: true, Reload: r}) }

func (b *bench) restart() {
	b.close()
	b.start()
}

func (b *bench) save(text string) {
	if err := os.WriteFile(b.main(), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

// served lists the services with the last number of their VIP.
func (b *bench) served() string {
	var all []string
	for name, s := range b.loader.state.Services.All() {
		all = append(all, fmt.Sprintf("%s=%d", name, s.VIPs[0].As4()[3]))
	}
	return strings.Join(all, " ")
}

func try(text string, within time.Duration) Reload {
	now := time.Now()
	return Reload{Try: &store.Pending{By: "ana", Since: now, Until: now.Add(within), Text: text}}
}

func table(n int) string {
	return fmt.Sprintf("[services.a]\nvips = [\"10.96.0.%d\"]\nports = [{ port = 80 }]\n", n)
}

// pendingModel is the expected behavior: the last valid text of the file is served, except while a
// change is pending.
type pendingModel struct {
	file, try string // texts; a broken text has no number
	former    string // the text of the file at the start of the change
	good      int    // number of the last valid text
}

// read reads the file unless a change is pending.
func (m *pendingModel) read() {
	var n int
	if _, err := fmt.Sscanf(m.file, "[services.a]\nvips = [\"10.96.0.%d\"]", &n); err == nil && m.try == "" {
		m.good = n
	}
}

func (m *pendingModel) served() string {
	n := m.good
	if m.try != "" {
		_, _ = fmt.Sscanf(m.try, "[services.a]\nvips = [\"10.96.0.%d\"]", &n) // each pending text has a number
	}
	return fmt.Sprint("a=", n)
}

// TestPendingHistories compares random histories of saves, changes, confirmations, aborts, expiries
// and restarts with a model. Before the deadline, the old or the pending state must be served, and
// afterwards exactly the old or the confirmed state.
func TestPendingHistories(t *testing.T) {
	seen := map[store.Outcome]int{}
	for seed := range uint64(20) {
		b := newBench(t)
		random := rand.New(rand.NewPCG(seed, 0))
		m := pendingModel{file: table(1), good: 1}
		b.save(m.file)
		b.start()
		for i := range 40 {
			act := pendingAct(random, b, &m)
			if got, want := b.served(), m.served(); got != want || (len(b.loader.state.Pending) > 0) != (m.try != "") {
				t.Fatalf("seed %d, step %d, after %s: served = %s, pending = %v; want %s, %q", seed, i, act, got, b.loader.state.Pending, want, m.try)
			}
		}
		for _, o := range b.outcomes {
			seen[o]++
		}
		b.close()
	}
	for _, o := range []store.Outcome{store.Started, store.Confirmed, store.Aborted, store.Expired} {
		if seen[o] == 0 {
			t.Errorf("outcome %s never occurred, want each: %v", o, seen)
		}
	}
}

// pendingAct makes a random step in b and in the model, and returns its name.
func pendingAct(random *rand.Rand, b *bench, m *pendingModel) string {
	text := table(2 + random.IntN(200))
	wants := func(act string, err error, refused bool) string {
		if (err != nil) != refused {
			b.Errorf("%s: error = %v, want a refusal: %v", act, err, refused)
		}
		return act
	}
	switch random.IntN(8) {
	case 0:
		m.file = text
	case 1:
		m.file = "[services.a\nbroken" + text
	case 2:
		refused := m.try != "" || m.file == text
		if !refused {
			m.try, m.former = text, m.file
		}
		return wants("try", b.reload(try(text, time.Hour)), refused)
	case 3:
		err := b.reload(Reload{Abort: true})
		refused := m.try == ""
		m.try = ""
		m.read()
		return wants("abort", err, refused)
	case 4:
		if m.try != "" {
			m.file, m.try = m.try, ""
			m.read()
			b.save(m.file)
			return wants("confirm", b.reload(Reload{}), false)
		}
		m.read()
		return wants("reload", b.reload(Reload{}), false)
	case 5:
		if t := b.loader.main.trial; t != nil {
			t.Until = time.Now()
		}
		m.try = ""
		m.read()
		return wants("expiry", b.step(look{all: true, forced: true}), false)
	case 6:
		if m.file != m.former {
			m.try = ""
		}
		m.read()
		b.restart()
		return "restart"
	case 7:
		if b.loader.main.trial != nil {
			b.rewind()
		}
		m.try = ""
		m.read()
		b.restart()
		return "restart after the deadline"
	}
	b.save(m.file)
	m.read()
	return wants("save", b.reload(Reload{}), false)
}

// rewind makes the deadline of the recorded change pass.
func (b *bench) rewind() {
	p := *b.loader.main.trial.Pending
	p.Since, p.Until = p.Since.Add(-2*time.Hour), p.Until.Add(-2*time.Hour)
	if err := <-b.record.Write(statedir.Text(pendingFile{statedir.Version, &p})); err != nil {
		b.Fatal(err)
	}
}

// TestPendingIsRecordedFirst makes state_dir unwritable. The change must be refused, and a later
// process must not use it.
func TestPendingIsRecordedFirst(t *testing.T) {
	b := newBench(t)
	b.save(table(1))
	b.start()
	state, away := filepath.Join(b.dir, "state"), filepath.Join(b.dir, "away")
	if err := os.Rename(state, away); err != nil {
		t.Fatal(err)
	}
	err := b.reload(try(table(2), time.Hour))
	if err == nil || !strings.HasPrefix(err.Error(), "the change is not applied, because it can't be recorded: ") {
		t.Errorf("error = %v, want that the change can't be recorded", err)
	}
	if b.served() != "a=1" || b.loader.state.Pending != nil {
		t.Errorf("served = %s, pending = %v, want a=1 and no pending change", b.served(), b.loader.state.Pending)
	}
	if err := os.Rename(away, state); err != nil {
		t.Fatal(err)
	}
	b.restart()
	defer b.close()
	if b.served() != "a=1" || len(b.outcomes) > 0 {
		t.Errorf("after a restart: served = %s, outcomes = %v, want a=1 and no outcomes", b.served(), b.outcomes)
	}
}

// TestPendingEndIsNotRecorded ends changes while state_dir is unwritable. An abort must report that
// its end is not recorded. After a confirmation and a later save, a restart must serve the saved
// text.
func TestPendingEndIsNotRecorded(t *testing.T) {
	b := newBench(t)
	b.save(table(1))
	b.start()
	state, away := filepath.Join(b.dir, "state"), filepath.Join(b.dir, "away")
	unwritable := func(do func()) {
		err := b.reload(try(table(2), time.Hour))
		recorded, readErr := os.ReadFile(filepath.Join(state, pendingName))
		if err = errors.Join(err, readErr, os.Rename(state, away)); err != nil {
			t.Fatal(err)
		}
		do()
		_ = b.state.Close() // Close can't write the record either
		err = errors.Join(os.Rename(away, state), os.WriteFile(filepath.Join(state, pendingName), recorded, 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	unwritable(func() {
		err := b.reload(Reload{Abort: true})
		if err == nil || !strings.HasPrefix(err.Error(), "the change is reverted, but that is not recorded: if vipd restarts before ") || b.served() != "a=1" {
			t.Errorf("abort: error = %v, served = %s, want that the end is not recorded, and a=1", err, b.served())
		}
	})
	b.start()
	if err := b.reload(Reload{Abort: true}); err != nil {
		t.Errorf("error of a second abort = %v, want nil", err)
	}
	unwritable(func() {
		b.save(table(2))
		if err := b.reload(Reload{}); err != nil || b.served() != "a=2" {
			t.Errorf("confirmation: error = %v, served = %s, want nil and a=2", err, b.served())
		}
		b.save(table(3))
	})
	b.start()
	if b.served() != "a=3" || b.loader.state.Pending != nil {
		t.Errorf("after the restart: served = %s, pending = %v; want a=3", b.served(), b.loader.state.Pending)
	}
	b.close()
}

// TestPendingKeepsPointers reverts a change. Services that the change did not affect must keep
// their pointers throughout.
func TestPendingKeepsPointers(t *testing.T) {
	b := newBench(t)
	const other = "[services.b]\nvips = [\"10.96.0.9\"]\nports = [{ port = 80 }]\n"
	b.save(other + table(1))
	b.start()
	first := b.loader.state.Services.At("b")
	for _, r := range []Reload{try(other+table(2), time.Hour), {}, {Abort: true}, {}} {
		if err := b.reload(r); err != nil {
			t.Fatal(err)
		}
		if b.loader.state.Services.At("b") != first {
			t.Errorf("after %+v: the pointer of b has changed, want the same", r)
		}
	}
	b.close()
}

func (b *bench) close() {
	if err := b.state.Close(); err != nil {
		b.Fatal(err)
	}
}

// TestPendingOvertaken saves the file while a change is pending. The saved text must cause a
// problem, and must be read at the end of the change.
func TestPendingOvertaken(t *testing.T) {
	b := newBench(t)
	b.save(table(1))
	b.start()
	err := b.reload(try(table(2), time.Hour))
	b.save(table(3))
	err = errors.Join(err, b.reload(Reload{}))
	if problems := b.loader.state.Problems; err != nil || b.served() != "a=2" || len(problems) != 1 || !strings.HasPrefix(problems[0].Text, "has changed while another change") {
		t.Errorf("error = %v, served = %s, problems = %v, want the former text", err, b.served(), problems)
	}
	if err := b.reload(try(table(4), time.Hour)); err == nil || !strings.Contains(err.Error(), " by ana is already pending, until ") {
		t.Errorf("error of another change = %v, want a refusal", err)
	}
	if err := b.reload(Reload{Abort: true}); err != nil || b.served() != "a=3" || len(b.loader.state.Problems) != 0 {
		t.Errorf("error = %v, served = %s, problems = %v, want the former text", err, b.served(), b.loader.state.Problems)
	}
	if want := []store.Outcome{store.Started, store.Aborted}; !slices.Equal(b.outcomes, want) {
		t.Errorf("outcomes = %v, want %v", b.outcomes, want)
	}
	b.close()
}
