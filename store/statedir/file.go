package statedir

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"vipd/balancer/lib/atomicfile"
)

// Version is what files are written with that Read reads. It is raised when an old program would misread them.
const Version = 1

// File is a file in state_dir. Keep, Read, Load and Held of a nil File do nothing. Its methods may be called by any goroutine, and
// don't wait for the disk, but for those that read.
type File struct {
	dir          *Dir
	name, unkept string
	size         Size
	newer        chan struct{} // holds one token: there is a next job

	// Dir.mu guards the rest.
	next  *job
	busy  bool      // a goroutine works, or rests after that
	since time.Time // when the job began that is being done; zero means none is
	wrong error     // of the last write, or of the first read
	lost  error     // of a write after Close, which nothing follows
}

// job is what is to be done with a file.
type job struct {
	do func() error
	// done is told the outcome, unless it is nil.
	done func(error)
	// confirms: what is in the file stays as it is.
	confirms bool
}

// Text writes a file's content, as JSON of more than one line. Nothing may change it from now on.
func Text(content any) func(*bufio.Writer) error {
	return func(w *bufio.Writer) error {
		lines := json.NewEncoder(w)
		lines.SetIndent("", "\t")
		return lines.Encode(content)
	}
}

// Path is where the file is.
func (f *File) Path() string { return filepath.Join(f.dir.path, f.name) }

// Read fills into with what Text has written, and reports whether it did. What can't be read is a problem until the file is
// written, and set aside.
func (f *File) Read(into any) (read bool) {
	err := f.Load(func(text []byte) error {
		var head struct {
			Version int `json:"version"`
		}
		err := json.Unmarshal(text, &head)
		if err == nil && head.Version != Version {
			err = fmt.Errorf("it has version %d; this program reads %d", head.Version, Version)
		}
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		read = err == nil
		return err
	})
	if err != nil {
		f.Refuse(err)
	}
	return read
}

// Refuse notes that something in the file could not be read.
func (f *File) Refuse(err error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	f.noteLocked(fmt.Errorf("reading what an earlier run kept: %w", err))
}

// Load has decode read what an earlier process has kept, if there is anything. A file that decode refuses is set aside as NAME.broken,
// which the error says; one that can't be read stays until something newer is kept.
func (f *File) Load(decode func(text []byte) error) error {
	if f == nil {
		return nil
	}
	text, err := ask(f.dir, f.Path(), func() ([]byte, error) { return os.ReadFile(f.Path()) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w; it is left as it is", err)
	}
	return atomicfile.SetAside(f.Path(), decode(text))
}

// Held is until when what the file says was so: it was written or confirmed then. Zero: that is not known.
func (f *File) Held() time.Time {
	if f == nil {
		return time.Time{}
	}
	info, err := ask(f.dir, f.Path(), func() (os.FileInfo, error) { return os.Stat(f.Path()) })
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Keep has the file be what write writes, soon, and instead of what it was to be before.
func (f *File) Keep(write func(*bufio.Writer) error) {
	if f != nil {
		f.put(&job{do: func() error { return f.replace(write) }})
	}
}

// Write is Keep, and tells the outcome, or that the disk does not answer: then what is written may still be, unless something else is
// kept after it. A disk that is known to be silent is not waited for again.
func (f *File) Write(write func(*bufio.Writer) error) <-chan error {
	outcome := make(chan error, 1)
	tell := func(err error) {
		select {
		case outcome <- err:
		default: // it was told
		}
	}
	f.dir.mu.Lock()
	silent := f.busy && !f.since.IsZero() && time.Since(f.since) >= f.size.patience()
	f.dir.mu.Unlock()
	if silent {
		tell(f.silence())
		return outcome
	}
	f.put(&job{do: func() error { return f.replace(write) }, done: tell})
	time.AfterFunc(f.size.patience(), func() { tell(f.silence()) })
	return outcome
}

// Confirm notes that what was last kept is still so. What can't be noted counts as not so for as long.
func (f *File) Confirm() {
	f.put(&job{confirms: true, do: func() error {
		_ = os.Chtimes(f.Path(), time.Time{}, time.Now())
		return nil
	}})
}

func (f *File) replace(write func(*bufio.Writer) error) error {
	if err := atomicfile.Write(f.Path(), atomicfile.Lasting, write); err != nil {
		return fmt.Errorf("keeping %s in state_dir: %w", f.name, err)
	}
	return nil
}

// silence is the error of a disk that does not answer.
func (f *File) silence() error {
	return fmt.Errorf("keeping %s in state_dir: the disk has not answered for %s", f.name, f.size.patience())
}

// put makes j what is done next.
func (f *File) put(j *job) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if j.confirms && f.next != nil {
		return
	}
	f.next = j
	select {
	case f.newer <- struct{}{}:
	default:
	}
	if !f.busy {
		f.busy = true
		f.dir.writing.Go(f.work)
	}
}

// work does what is to be done until nothing is.
func (f *File) work() {
	var failed *job
	for {
		j, began := f.begin(failed)
		if j == nil {
			return
		}
		late := time.AfterFunc(f.size.patience(), func() { f.late(began) })
		err := j.do()
		late.Stop()
		f.ended(j, err)
		if failed = nil; err != nil && !f.dir.isClosing() {
			failed = j
		}
		switch {
		case f.size == Large:
			f.rest(min(max(pause, share*time.Since(began)), longest), nil)
		case failed != nil:
			f.rest(pause, f.newer)
		}
	}
}

// begin takes the job that is to be done now: the newest, else the one that failed. Nil means there is none.
func (f *File) begin(failed *job) (*job, time.Time) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	j := f.next
	if j == nil || j.confirms && failed != nil {
		j = failed
	}
	select {
	case <-f.newer:
	default:
	}
	f.next, f.busy, f.since = nil, j != nil, time.Now()
	return j, f.since
}

// late notes that the job which began then goes on, if it does.
func (f *File) late(began time.Time) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if f.since.Equal(began) {
		f.noteLocked(f.failure(f.silence()))
	}
}

// ended notes the outcome of a job.
func (f *File) ended(j *job, err error) {
	f.dir.mu.Lock()
	f.since = time.Time{}
	f.noteLocked(f.failure(err))
	if f.dir.isClosing() {
		f.lost = err
	}
	f.dir.mu.Unlock()
	if j.done != nil {
		j.done(err)
	}
}

// failure is what err means to users.
func (f *File) failure(err error) error {
	if err == nil || f.unkept == "" {
		return err
	}
	return fmt.Errorf("%s: %w", f.unkept, err)
}

// noteLocked makes err what is wrong with the file; nil means nothing is.
func (f *File) noteLocked(err error) {
	old := f.wrong
	if f.wrong = err; fmt.Sprint(old) != fmt.Sprint(err) {
		f.dir.changed()
	}
}

// rest waits for a time, until there is a newer job where newer says so, or until Close.
func (f *File) rest(least time.Duration, newer <-chan struct{}) {
	timer := time.NewTimer(least)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-newer:
	case <-f.dir.closing:
	}
}
