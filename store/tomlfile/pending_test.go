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

// bench is a source that the test itself drives step by step, instead of Watch.
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

// start starts a new process, which finds the saved state of the earlier process.
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

// step performs a single check of the files, as Watch does repeatedly.
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

// served lists the services in use as NAME=N, where N is the last number of its VIP.
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

// pendingModel models which text is served: the last valid text of the file, or the text of the
// change while a change is pending.
type pendingModel struct {
	file, try string // the text of the file, and the text of the pending change or ""
	former    string // the text of the file when the change started
	good      int    // number in the last valid text of the file
}

// read makes the text of the file the last valid text, if it is valid and no change is pending.
func (m *pendingModel) read() {
	var n int
	if _, err := fmt.Sscanf(m.file, "[services.a]\nvips = [\"10.96.0.%d\"]", &n); err == nil && m.try == "" {
		m.good = n
	}
}

func (m *pendingModel) served() string {
	n := m.good
	if m.try != "" {
		_, _ = fmt.Sscanf(m.try, "[services.a]\nvips = [\"10.96.0.%d\"]", &n) // the text of a change is always valid
	}
	return fmt.Sprint("a=", n)
}

// TestPendingHistories applies random sequences of saved files, pending changes, confirmations,
// aborts, deadlines and restarts. After each step, the source must serve the text that the model
// expects.
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
				t.Fatalf("seed %d, step %d, after %s: served = %s, pending change = %v; want %s, and a pending change with the text %q", seed, i, act, got, b.loader.state.Pending, want, m.try)
			}
		}
		for _, o := range b.outcomes {
			seen[o]++
		}
		b.close()
	}
	for _, o := range []store.Outcome{store.Started, store.Confirmed, store.Aborted, store.Expired} {
		if seen[o] == 0 {
			t.Errorf("outcome %s never occurred for any seed: %v", o, seen)
		}
	}
}

// pendingAct performs a random step in b and in the model, and returns the name of the step.
func pendingAct(random *rand.Rand, b *bench, m *pendingModel) string {
	text := table(2 + random.IntN(200))
	wants := func(act string, err error, refused bool) string {
		if (err != nil) != refused {
			b.Errorf("%s: error = %v, want an error: %v", act, err, refused)
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

// rewind changes the recorded change so that its deadline has passed.
func (b *bench) rewind() {
	p := *b.loader.main.trial.Pending
	p.Since, p.Until = p.Since.Add(-2*time.Hour), p.Until.Add(-2*time.Hour)
	if err := <-b.record.Write(statedir.Text(pendingFile{statedir.Version, &p})); err != nil {
		b.Fatal(err)
	}
}

// TestPendingIsRecordedFirst starts a change while state_dir can't be written. The change must be
// refused, and must not take effect even after a restart.
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
		t.Errorf("error = %v, want the error that the change can't be recorded", err)
	}
	if b.served() != "a=1" || b.loader.state.Pending != nil {
		t.Errorf("served = %s, pending change = %v, want a=1 and none", b.served(), b.loader.state.Pending)
	}
	if err := os.Rename(away, state); err != nil {
		t.Fatal(err)
	}
	b.restart()
	defer b.close()
	if b.served() != "a=1" || len(b.outcomes) > 0 {
		t.Errorf("after a restart: served = %s, outcomes = %v, want a=1 and none", b.served(), b.outcomes)
	}
}

// TestPendingEndIsNotRecorded ends changes while state_dir can't be written. An abort must report
// that it was not recorded. If the file is saved after a confirmation, a restarted process must
// serve the saved text.
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
		_ = b.state.Close() // Close also can't record that the change has ended
		err = errors.Join(os.Rename(away, state), os.WriteFile(filepath.Join(state, pendingName), recorded, 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	unwritable(func() {
		err := b.reload(Reload{Abort: true})
		if err == nil || !strings.HasPrefix(err.Error(), "the change is reverted, but this can't be recorded: if vipd restarts before ") || b.served() != "a=1" {
			t.Errorf("abort: error = %v, served = %s, want an error that the end is not recorded, and a=1", err, b.served())
		}
	})
	b.start()
	if err := b.reload(Reload{Abort: true}); err != nil {
		t.Errorf("abort after a restart: error = %v, want nil", err)
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
		t.Errorf("after the restart: served = %s, pending change = %v; want a=3 and none", b.served(), b.loader.state.Pending)
	}
	b.close()
}

// TestPendingKeepsPointers starts a change and aborts it. A service that the change does not affect
// must always keep its pointer.
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
			t.Errorf("after %+v: b has a new pointer, want the previous pointer", r)
		}
	}
	b.close()
}

func (b *bench) close() {
	if err := b.state.Close(); err != nil {
		b.Fatal(err)
	}
}

// TestPendingOvertaken saves another text to the file while a change is pending. A problem must
// report this. When the change is aborted, the saved text must be served.
func TestPendingOvertaken(t *testing.T) {
	b := newBench(t)
	b.save(table(1))
	b.start()
	err := b.reload(try(table(2), time.Hour))
	b.save(table(3))
	err = errors.Join(err, b.reload(Reload{}))
	if problems := b.loader.state.Problems; err != nil || b.served() != "a=2" || len(problems) != 1 || !strings.HasPrefix(problems[0].Text, "has changed while another change") {
		t.Errorf("while the change is pending: error = %v, served = %s, problems = %v, want nil, a=2 and one problem", err, b.served(), problems)
	}
	if err := b.reload(try(table(4), time.Hour)); err == nil || !strings.Contains(err.Error(), " by ana is already pending, until ") {
		t.Errorf("another change: error = %v, want the error that a change by ana is already pending", err)
	}
	if err := b.reload(Reload{Abort: true}); err != nil || b.served() != "a=3" || len(b.loader.state.Problems) != 0 {
		t.Errorf("after the abort: error = %v, served = %s, problems = %v, want nil, a=3 and none", err, b.served(), b.loader.state.Problems)
	}
	if want := []store.Outcome{store.Started, store.Aborted}; !slices.Equal(b.outcomes, want) {
		t.Errorf("outcomes = %v, want %v", b.outcomes, want)
	}
	b.close()
}
