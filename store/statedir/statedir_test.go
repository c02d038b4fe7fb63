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

// has fails the test unless a file contains want; "" means that it is missing.
func has(t *testing.T, f *File, want string) {
	t.Helper()
	if text, err := os.ReadFile(f.Path()); err != nil && want != "" || string(text) != want {
		t.Errorf("%s = %q, %v; want %q", f.name, text, err, want)
	}
}

// told fails the test unless the directory's only problem starts with want; "" means that it has
// none.
func told(t *testing.T, d *Dir, want string) {
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
// must be set aside, and be a problem until a write.
func TestFilesOutlive(t *testing.T) {
	path := t.TempDir()
	d := New(path, func() {})
	f := d.File("a.json", "it is lost", Small)
	var got note
	if f.Read(&got) {
		t.Errorf("Read of a missing file = %+v", got)
	}
	told(t, d, "")
	write := func(s string) {
		t.Helper()
		if err := <-f.Write(Text(note{Version, s})); err != nil {
			t.Fatal(err)
		}
		if !f.Read(&got) || got.Text != s {
			t.Errorf("Read = %+v, want %s", got, s)
		}
		told(t, d, "")
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
			t.Errorf("%s: file set aside = %q, %v", name, kept, err)
		}
		told(t, d, "reading what an earlier run kept: ")
	}
	write("second")
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 {
		t.Errorf("files in the folder = %v, %v", entries, err)
	}
}

// TestDiskHangs makes the disk hang. No caller may wait. After some seconds there must be a problem
// until the disk answers. The last state of each file must be written then, and other files during
// the hang. Close must wait only some seconds.
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
		told(t, d, "")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		const silent = "it is lost: keeping a.json in state_dir: the disk has not answered for 5s"
		told(t, d, silent)
		began := time.Now()
		for range 3 { // it need not wait for each
			if err := <-f.Write(text("refused")); err == nil || !strings.HasSuffix(silent, err.Error()) || time.Since(began) != 0 {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		}
		f.Keep(text("three"))
		f.Confirm()
		other.Keep(text("other"))
		synctest.Wait()
		has(t, other, "other")
		has(t, f, "")
		began = time.Now()
		if err := d.Close(); err == nil || !strings.HasSuffix(err.Error(), " is not in a.json") || time.Since(began) != parting {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		close(answers)
		synctest.Wait()
		has(t, f, "three")
		told(t, d, "")
		if changes != 2 {
			t.Errorf("reports = %d, want one when it hung and one when it recovered", changes)
		}
	})
}

// TestDiskHangsAtTheStart makes the disk hang at the start. The read must be awaited once, and then
// be a problem until the file is written. A disk that answers again must be read.
func TestDiskHangsAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(t.TempDir(), func() {})
		answers := make(chan struct{})
		hangs := func() (struct{}, error) { <-answers; return struct{}{}, nil }
		began := time.Now()
		if _, err := ask(d, "a.json", hangs); !errors.Is(err, errSilent) || time.Since(began) != starting {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		f := d.File("a.json", "it is lost", Small)
		if err := d.Check(func(path string) error { return os.MkdirAll(path, 0o755) }); err != nil || f.Read(&note{}) || !f.Held().IsZero() || time.Since(began) != starting {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		told(t, d, "reading what an earlier run kept: open "+f.Path()+": the disk has not answered for 10s; it is left as it is")
		close(answers)
		synctest.Wait()
		if err := <-f.Write(Text(note{Version, "first"})); err != nil || !f.Read(&note{}) {
			t.Errorf("it is not read: %v", err)
		}
		told(t, d, "")
	})
}

// TestTriesAgain makes writes fail. The failure must be a problem that is reported once. The newest
// state must be retried, also at the end.
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
		told(t, d, "it is lost: keeping a.json in state_dir: open ")
		folder := func(do func(string) error) {
			if err := do(path); err != nil {
				t.Fatal(err)
			}
		}
		folder(func(path string) error { return os.Mkdir(path, 0o700) })
		time.Sleep(pause)
		synctest.Wait()
		has(t, f, "two")
		told(t, d, "")
		folder(os.RemoveAll)
		f.Keep(text("three"))
		synctest.Wait()
		folder(func(path string) error { return os.Mkdir(path, 0o700) })
		if err := d.Close(); err != nil || changes != 4 {
			t.Errorf("error = %v, reports = %d; want 2 of each", err, changes)
		}
		has(t, f, "three")
	})
}

// TestLargeFiles changes a large file constantly. It must be written at intervals, and in its last
// state at the end.
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
		f.Keep(func(*bufio.Writer) error { time.Sleep(time.Hour); return nil }) // the disk hangs, and then everything continues soon
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
			t.Error("Held() is zero while a write hangs")
		}
	})
}

// TestLastWriteFails makes the last write fail. Close must report it, because no program reads
// Problems afterwards.
func TestLastWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(t.TempDir(), func() {})
		f := d.File("a.json", "it is lost", Small)
		full := errors.New("the disk is full")
		f.Keep(func(*bufio.Writer) error { return full })
		synctest.Wait() // and it is retried
		if err := d.Close(); !errors.Is(err, full) {
			t.Errorf("error of Close = %v", err)
		}
	})
}
