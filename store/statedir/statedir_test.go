package statedir

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// note is a file's content.
type note struct {
	Version int    `json:"version"`
	Text    string `json:"text"`
}

// has fails the test unless a file contains want. If want is "", the file must be missing.
func has(t *testing.T, f *File, want string) {
	t.Helper()
	if text, err := os.ReadFile(f.Path()); err != nil && want != "" || string(text) != want {
		t.Errorf("%s = %q, %v; want %q", f.name, text, err, want)
	}
}

// wantProblem checks that the folder's only problem starts with want. If want is "", the folder
// must have no problem.
func wantProblem(t *testing.T, d *Dir, want string) {
	t.Helper()
	p := d.Problems()
	if want == "" && len(p) > 0 || want != "" && (len(p) != 1 || p[0].Field != "state_dir" || !strings.HasPrefix(p[0].Text, want)) {
		t.Errorf("problems = %v, want %q", p, want)
	}
}

func text(s string) func(*bufio.Writer) error {
	return func(w *bufio.Writer) error { _, err := w.WriteString(s); return err }
}

// TestFilesOutlive writes and reads files. They must be read back completely. An unreadable file
// must be set aside, and must be a problem until the next write.
func TestFilesOutlive(t *testing.T) {
	path := t.TempDir()
	d := New(path, func() {})
	f := d.File("a.json", "it is lost", Small)
	var got note
	if f.Read(&got) {
		t.Errorf("Read of a missing file = true with %+v, want false", got)
	}
	wantProblem(t, d, "")
	write := func(s string) {
		t.Helper()
		if err := <-f.Write(Text(note{Version, s})); err != nil {
			t.Fatal(err)
		}
		if !f.Read(&got) || got.Text != s {
			t.Errorf("Read = %+v, want %s", got, s)
		}
		wantProblem(t, d, "")
	}
	write("first")
	for name, text := range map[string]string{"torn": "{", "of the future": fmt.Sprintf(`{"version": %d}`, Version+1)} {
		if err := os.WriteFile(f.Path(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if f.Read(&note{}) {
			t.Errorf("Read of a file that is %s = true, want false", name)
		}
		if kept, err := os.ReadFile(f.Path() + ".broken"); err != nil || string(kept) != text {
			t.Errorf("%s: file set aside = %q, %v, want %q", name, kept, err, text)
		}
		wantProblem(t, d, "reading the state of an earlier run: ")
	}
	write("second")
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 {
		t.Errorf("files in the folder = %v, %v, want 2", entries, err)
	}
}

// TestDiskHangs makes the disk hang. No caller except Close may wait, and after several seconds
// there must be a problem until the disk answers. Then the last state of each file must be written.
// Other files must be written during the hang, and Close must wait only several seconds.
func TestDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		d := New(t.TempDir(), func() { changes++ })
		f, other := d.File("a.json", "it is lost", Small), d.File("b.json", "", Large)
		answers := make(chan struct{})
		hanging := func(s string) func(*bufio.Writer) error {
			return func(w *bufio.Writer) error {
				<-answers
				return text(s)(w)
			}
		}
		f.Keep(hanging("one"))
		synctest.Wait()
		f.Keep(text("two"))
		time.Sleep(Small.patience() - 1)
		synctest.Wait()
		wantProblem(t, d, "")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		const silent = "it is lost: saving a.json in state_dir: the disk has not answered for 5s"
		wantProblem(t, d, silent)
		began := time.Now()
		for range 3 { // a disk that already hangs must not delay Write
			if err := <-f.Write(text("refused")); err == nil || !strings.HasSuffix(silent, err.Error()) || time.Since(began) != 0 {
				t.Errorf("Write after %s = %v, want the error of the problem immediately", time.Since(began), err)
			}
		}
		f.Keep(text("three"))
		f.Confirm()
		other.Keep(text("other"))
		synctest.Wait()
		has(t, other, "other")
		has(t, f, "")
		began = time.Now()
		if err := d.Close(); err == nil || !strings.HasSuffix(err.Error(), " was not saved in a.json") || time.Since(began) != parting {
			t.Errorf("Close after %s = %v, want an error about a.json after %s", time.Since(began), err, parting)
		}
		close(answers)
		synctest.Wait()
		has(t, f, "three")
		wantProblem(t, d, "")
		if changes != 2 {
			t.Errorf("reports = %d, want 2: one when the disk hung, and one when it answered", changes)
		}
	})
}

// TestDiskHangsAtTheStart makes the disk hang at the start. The start must wait for the read only
// once, and then report a problem until the file is written. Once the disk answers again, the file
// must be read.
func TestDiskHangsAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(t.TempDir(), func() {})
		answers := make(chan struct{})
		hangs := func() (struct{}, error) { <-answers; return struct{}{}, nil }
		began := time.Now()
		if _, err := ask(d, "a.json", hangs); !errors.Is(err, errSilent) || time.Since(began) != starting {
			t.Errorf("ask after %s = %v, want errSilent after %s", time.Since(began), err, starting)
		}
		f := d.File("a.json", "it is lost", Small)
		if err := d.Check(func(path string) error { return os.MkdirAll(path, 0o755) }); err != nil || f.Read(&note{}) || !f.Held().IsZero() || time.Since(began) != starting {
			t.Errorf("Check after %s = %v, want nil without another wait", time.Since(began), err)
		}
		wantProblem(t, d, "reading the state of an earlier run: open "+f.Path()+": the disk has not answered for 10s; the file is left unchanged")
		close(answers)
		synctest.Wait()
		if err := <-f.Write(Text(note{Version, "first"})); err != nil || !f.Read(&note{}) {
			t.Errorf("Write and Read once the disk answers: %v, want success", err)
		}
		wantProblem(t, d, "")
	})
}

// TestTriesAgain makes writes fail. The failure must be a problem that is reported once. The newest
// state must be retried, even during Close.
func TestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, changes := filepath.Join(t.TempDir(), "later"), 0
		d := New(path, func() { changes++ })
		f := d.File("a.json", "it is lost", Small)
		f.Keep(text("one"))
		time.Sleep(3 * pause)
		f.Confirm() // a missing state can't be confirmed
		f.Keep(text("two"))
		synctest.Wait()
		wantProblem(t, d, "it is lost: saving a.json in state_dir: open ")
		folder := func(do func(string) error) {
			if err := do(path); err != nil {
				t.Fatal(err)
			}
		}
		folder(func(path string) error { return os.Mkdir(path, 0o700) })
		time.Sleep(pause)
		synctest.Wait()
		has(t, f, "two")
		wantProblem(t, d, "")
		folder(os.RemoveAll)
		f.Keep(text("three"))
		synctest.Wait()
		folder(func(path string) error { return os.Mkdir(path, 0o700) })
		if err := d.Close(); err != nil || changes != 4 {
			t.Errorf("Close = %v, reports = %d; want nil, 4", err, changes)
		}
		has(t, f, "three")
	})
}

// TestLargeFiles changes a large file constantly. It must be written at intervals, and must have
// its last state at the end.
func TestLargeFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(t.TempDir(), func() {})
		f, writes := d.File("a.state", "", Large), 0
		slow := func(w *bufio.Writer) error {
			writes++
			time.Sleep(time.Second)
			return text(fmt.Sprint("as at ", writes))(w)
		}
		for range 100 * 60 {
			f.Keep(slow)
			time.Sleep(10 * time.Millisecond)
		}
		if want := int(time.Minute/(time.Second+share*time.Second)) + 1; writes != want {
			t.Errorf("writes = %d, want %d", writes, want)
		}
		f.Keep(func(*bufio.Writer) error { time.Sleep(time.Hour); return nil }) // hangs for an hour; afterwards, writes must continue soon
		time.Sleep(maxRest + time.Hour)
		f.Keep(text("after"))
		time.Sleep(maxRest)
		synctest.Wait()
		has(t, f, "after")
		f.Keep(slow)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		has(t, f, fmt.Sprint("as at ", writes))
		if f.Held().IsZero() {
			t.Error("Held() after the last write = zero, want the time of the write")
		}
	})
}

// TestLastWriteFails makes the last write fail. Close must return the error, because problems are
// no longer read afterwards.
func TestLastWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(t.TempDir(), func() {})
		f := d.File("a.json", "it is lost", Small)
		full := errors.New("the disk is full")
		f.Keep(func(*bufio.Writer) error { return full })
		synctest.Wait() // the write was also retried
		if err := d.Close(); !errors.Is(err, full) {
			t.Errorf("error of Close = %v, want %v", err, full)
		}
	})
}
