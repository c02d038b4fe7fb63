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

// note is the content of a file that the tests read and write.
type note struct {
	Version int    `json:"version"`
	Text    string `json:"text"`
}

// has fails the test unless the file contains want. If want is "", the file must be missing or
// empty.
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

// TestFilesOutlive writes a file and reads it. Read must return what was written. If the file is
// damaged or from a later version, Read must rename it to a name with the suffix .broken, and there
// must be a problem until the next write.
func TestFilesOutlive(t *testing.T) {
	path := t.TempDir()
	d := New(path, func() {})
	f := d.File("a.json", "it is lost", Small)
	var got note
	if f.Read(&got) {
		t.Errorf("Read of a missing file = true, value = %+v, want false", got)
	}
	wantProblem(t, d, "")
	write := func(s string) {
		t.Helper()
		if err := <-f.Write(Text(note{Version, s})); err != nil {
			t.Fatal(err)
		}
		if !f.Read(&got) || got.Text != s {
			t.Errorf("value that was read = %+v, want the text %s", got, s)
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
			t.Errorf("%s: content of a.json.broken = %q, %v, want %q", name, kept, err, text)
		}
		wantProblem(t, d, "reading the state of an earlier run: ")
	}
	write("second")
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 {
		t.Errorf("files in the folder = %v, %v, want a.json and a.json.broken", entries, err)
	}
}

// TestDiskHangs makes the disk hang while a file is written. No caller except Close may wait for
// the disk, and Close must wait only for several seconds. Other files must still be written. After
// several seconds, there must be a problem until the disk answers. Then the file's last state must
// be written.
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
		for range 3 { // while the disk hangs, Write must return at once
			if err := <-f.Write(text("refused")); err == nil || !strings.HasSuffix(silent, err.Error()) || time.Since(began) != 0 {
				t.Errorf("Write after %s = %v, want the text of the problem as an error immediately", time.Since(began), err)
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
			t.Errorf("Close after %s = %v, want an error that names a.json, after %s", time.Since(began), err, parting)
		}
		close(answers)
		synctest.Wait()
		has(t, f, "three")
		wantProblem(t, d, "")
		if changes != 2 {
			t.Errorf("reports of changed problems = %d, want 2: one after the disk hung, and one after it answered", changes)
		}
	})
}

// TestDiskHangsAtTheStart makes the disk hang while a process starts. The start must wait for the
// disk only once. Then there must be a problem until a write succeeds. When the disk answers again,
// it must be possible to write and read the file.
func TestDiskHangsAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(t.TempDir(), func() {})
		answers := make(chan struct{})
		hangs := func() (struct{}, error) { <-answers; return struct{}{}, nil }
		began := time.Now()
		if _, err := ask(d, "a.json", hangs); !errors.Is(err, errSilent) || time.Since(began) != starting {
			t.Errorf("after %s, ask = %v, want errSilent after %s", time.Since(began), err, starting)
		}
		f := d.File("a.json", "it is lost", Small)
		if err := d.Check(func(path string) error { return os.MkdirAll(path, 0o755) }); err != nil || f.Read(&note{}) || !f.Held().IsZero() || time.Since(began) != starting {
			t.Errorf("%s after the start: Check = %v, want nil, an unreadable file, and no additional wait", time.Since(began), err)
		}
		wantProblem(t, d, "reading the state of an earlier run: open "+f.Path()+": the disk has not answered for 10s; the file is left unchanged")
		close(answers)
		synctest.Wait()
		if err := <-f.Write(Text(note{Version, "first"})); err != nil || !f.Read(&note{}) {
			t.Errorf("after the disk answered: Write = %v, or Read = false; want nil and true", err)
		}
		wantProblem(t, d, "")
	})
}

// TestTriesAgain makes writes fail, because the folder is missing. The failure must be reported as
// a problem once. Dir must retry with the newest state, even during Close.
func TestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, changes := filepath.Join(t.TempDir(), "later"), 0
		d := New(path, func() { changes++ })
		f := d.File("a.json", "it is lost", Small)
		f.Keep(text("one"))
		time.Sleep(3 * pause)
		f.Confirm() // has no effect, because no state has been written yet
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
			t.Errorf("Close = %v, reports of changed problems = %d; want nil, 4", err, changes)
		}
		has(t, f, "three")
	})
}

// TestLargeFiles changes the state of a large file all the time. The file must be written only at
// intervals, and must contain its last state at the end.
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
			t.Errorf("writes in a minute = %d, want %d", writes, want)
		}
		f.Keep(func(*bufio.Writer) error { time.Sleep(time.Hour); return nil }) // this write hangs for an hour, but the next write must follow soon after it
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

// TestLastWriteFails makes the last write fail. Close must return the error, because nobody reads
// the problems afterwards.
func TestLastWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(t.TempDir(), func() {})
		f := d.File("a.json", "it is lost", Small)
		full := errors.New("the disk is full")
		f.Keep(func(*bufio.Writer) error { return full })
		synctest.Wait() // waits until the write has failed
		if err := d.Close(); !errors.Is(err, full) {
			t.Errorf("Close = %v, want %v", err, full)
		}
	})
}
