package tomlfile

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/statedir"
)

// A pending change makes vipd use another text instead of the main file's text, without writing to
// the file. vipd records the text in state_dir before it uses the text. The change is confirmed
// when the file itself contains the text. If the change is aborted or its deadline passes, vipd
// returns to the last good state before the change, as it would after a restart.

const pendingName = "pending.json"

// pendingFile is the record of a pending change.
type pendingFile struct {
	Version int            `json:"version"`
	Pending *store.Pending `json:"pending,omitempty"`
}

// trial is a pending change that is in use.
type trial struct {
	*store.Pending
	// before is the last good state without the change.
	before *goodState
	// overtaken reports whether the file has changed since the pending change started.
	overtaken bool
}

// pend starts a pending change that was requested. It ends a pending change on request, if the file
// contains the change's text, or if the deadline has passed. It must be called before the files are
// read.
func (w *watchRun) pend(what *look) error {
	path, p := w.options.Main, w.loader.main.trial
	if p == nil {
		switch {
		case what.Abort:
			return fmt.Errorf("no change to %s is pending", path)
		case what.Try != nil:
			return w.start(what)
		}
		return nil
	}
	now, err := ReadFile(path)
	switch {
	case err == nil && string(now) == p.Text:
		_ = w.end(what, store.Confirmed) // it returns no error for a confirmation
		if what.Abort {
			return fmt.Errorf("the pending change is confirmed, because %s already has its text", path)
		}
	case what.Abort:
		err = w.end(what, store.Aborted)
	case !time.Now().Before(p.Until):
		_ = w.end(what, store.Expired)
	default:
		p.overtaken, err = err != nil || Sum(now) != p.Former, nil
	}
	if what.Try == nil {
		return err
	}
	if w.loader.main.trial == nil {
		return w.start(what)
	}
	return fmt.Errorf("a change to %s%s is already pending, until %s: vipctl confirm keeps it, and vipctl abort reverts it", path, signed(p.By), p.Until.Format(time.DateTime))
}

// signed returns " by NAME" for a change's author, or "" if the author is unknown.
func signed(by string) string {
	if by == "" {
		return ""
	}
	return " by " + by
}

// Sum returns the checksum of a file's text, as used in [store.Pending].
func Sum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// start records the pending change in a request, and puts it into effect.
func (w *watchRun) start(what *look) error {
	p := what.Try
	path, err := filepath.Abs(w.options.Main) // vipctl has another working directory
	if err != nil {
		return err
	}
	former, err := ReadFile(path)
	switch {
	case err != nil:
		return err
	case string(former) == p.Text:
		return fmt.Errorf("%s already has this text, so nothing is pending", path)
	case w.record == nil:
		return errors.New("pending changes need a state_dir: set state_dir")
	}
	p.Place, p.Former = path, Sum(former)
	before, err := w.loader.copyGood()
	if err == nil {
		err = <-w.record.Write(statedir.Text(pendingFile{statedir.Version, p}))
	}
	if err != nil {
		w.record.Keep(statedir.Text(pendingFile{Version: statedir.Version})) // a late write must not start the change after a restart
		return fmt.Errorf("the change is not applied, because it can't be recorded: %w", err)
	}
	w.loader.try(p, before)
	w.options.Pended(p, store.Started, p.By)
	what.all, what.forced = true, true
	return nil
}

// resume continues the pending change of an earlier process. If its deadline has passed, the next
// call of pend ends the change. If the file contains neither the previous nor the pending text, it
// was saved after the change started, so the change is dropped. The parameter kept is the earlier
// process's last good state, or nil.
func (w *watchRun) resume(what *look, kept *goodState) {
	var r pendingFile
	if w.record == nil || !w.record.Read(&r) || r.Pending == nil || !samePath(r.Pending.Place, w.options.Main) {
		return
	}
	p := r.Pending
	if now, err := ReadFile(w.options.Main); err == nil && string(now) != p.Text && Sum(now) != p.Former {
		w.options.Log.Warn("a pending change is not resumed, because its file has changed since the change started", "file", w.options.Main)
		w.record.Keep(statedir.Text(pendingFile{Version: statedir.Version}))
		return
	}
	left := min(time.Until(p.Until), p.Until.Sub(p.Since)) // limited, because the clock may be behind after a reboot
	p.Until = time.Now().Add(left)
	if kept == nil {
		kept = &goodState{} // the files were never saved, so their current text is the state before the change
	}
	w.loader.try(p, kept)
	what.all, what.forced = true, true
	if left > 0 {
		w.options.Pended(p, store.Started, p.By)
	}
}

// end ends the pending change. A change that is not confirmed is reverted. If end can't record that
// a change was aborted, it returns an error, because a restart would put the change into effect
// again.
func (w *watchRun) end(what *look, how store.Outcome) error {
	p, by := w.loader.main.trial, what.By
	if how == store.Expired {
		by = ""
	}
	if how == store.Confirmed {
		w.loader.keep()
	} else {
		w.loader = w.loader.reverted()
	}
	// A failed write is reported as a problem with state_dir, and is retried. Until it succeeds, a
	// restart uses the change again, at most until the deadline.
	err := <-w.record.Write(statedir.Text(pendingFile{Version: statedir.Version}))
	w.options.Pended(p.Pending, how, by)
	what.all, what.forced = true, true
	if err != nil && how == store.Aborted {
		return fmt.Errorf("the change is reverted, but this can't be recorded: if vipd restarts before %s, it will serve the change again: %w", p.Until.Format(time.DateTime), err)
	}
	return nil
}

// copyGood returns the last good state in the form that a restart would read.
func (l *loader) copyGood() (*goodState, error) {
	var text bytes.Buffer
	w := bufio.NewWriter(&text)
	if err := encodeKept(w, l.good()); err != nil {
		return nil, err
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	return decodeKept(text.Bytes())
}

// try replaces the text of the main file with the text of p for the next loads.
func (l *loader) try(p *store.Pending, before *goodState) {
	l.main.trial = &trial{Pending: p, before: before}
	l.readText = func(path string) (text, error) {
		t, err := readText(path)
		if path == l.path {
			t.path = path
			t.bytes = []byte(p.Text)
			t.writers = noWriters
			err = nil // even if the file is missing
		}
		return t, err
	}
}

// keep ends the trial without changing the state. Later loads read the main file from the disk
// again.
func (l *loader) keep() { l.main.trial, l.readText = nil, readText }

// reverted returns a loader with the state before the trial. Unchanged values keep their pointers.
func (l *loader) reverted() *loader {
	back := newLoader(l.path, "")
	back.follow = l.follow
	back.check = l.check
	back.grace = l.grace
	back.state = l.state
	back.begin(l.main.trial.before)
	values := store.Snapshot{Services: back.merge.services.values, VIPs: back.merge.vips.values}.Keeping(l.state)
	back.merge.services.values, back.merge.vips.values = values.Services, values.VIPs
	return back
}

func (l *loader) pending() []*store.Pending {
	if l.main.trial == nil {
		return nil
	}
	return []*store.Pending{l.main.trial.Pending}
}

// overtakenProblem returns a problem if the main file has changed while a change is pending.
func (l *loader) overtakenProblem() []balancer.Problem {
	if l.main.trial == nil || !l.main.trial.overtaken {
		return nil
	}
	return []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: l.path},
		Text: "has changed while another change to it is pending; vipd will read the file when that change is reverted; to revert it now, run vipctl abort",
	}}
}
