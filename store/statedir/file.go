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

// Version is the version of files that Read reads. It increases when an old program would misread
// them.
const Version = 1

// File is a file in state_dir. Keep, Read, Load and Held of a nil File do nothing. Its methods may
// be called by any goroutine. Only those that read wait for the disk.
type File struct {
	dir          *Dir
	name, unkept string
	size         Size
	newer        chan struct{} // holds a token: there is a next job

	// Dir.mu guards the rest.
	next  *job
	busy  bool      // a goroutine works, or rests after work
	since time.Time // when the current job began; zero means none runs
	wrong error     // of the last write, or of the first read
	lost  error     // of a write after Close
}

// job is an operation on a file.
type job struct {
	do func() error
	// done receives the outcome, unless it is nil.
	done func(error)
	// confirms reports whether the job only confirms that the content is unchanged.
	confirms bool
}

// Text writes content as indented JSON. The content must not change from now on.
func Text(content any) func(*bufio.Writer) error {
	return func(w *bufio.Writer) error {
		lines := json.NewEncoder(w)
		lines.SetIndent("", "\t")
		return lines.Encode(content)
	}
}

// Path returns the path of the file.
func (f *File) Path() string { return filepath.Join(f.dir.path, f.name) }

// Read decodes a file of Text into into, and reports whether it did. A file that can't be decoded
// is set aside, and is a problem until the next write.
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

// Refuse notes that a part of the file could not be read.
func (f *File) Refuse(err error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	f.noteLocked(fmt.Errorf("reading what an earlier run kept: %w", err))
}

// Load passes the content of an earlier process to decode, if there is any. A file that decode
// refuses is set aside as NAME.broken, as the error says. A file that can't be read stays until
// something newer is kept.
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

// Held returns when the content was last written or confirmed; zero means unknown.
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

// Keep writes the file soon. It replaces an earlier job that has not started.
func (f *File) Keep(write func(*bufio.Writer) error) {
	if f != nil {
		f.put(&job{do: func() error { return f.replace(write) }})
	}
}

// Write is [File.Keep], and sends the outcome, or an error if the disk does not answer. In that
// case the file may still be written, unless something else is kept later. It does not wait again
// for a disk that is known to hang.
func (f *File) Write(write func(*bufio.Writer) error) <-chan error {
	outcome := make(chan error, 1)
	tell := func(err error) {
		select {
		case outcome <- err:
		default: // it was already reported
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

// Confirm notes that the last content is still valid. Without a note it counts as outdated.
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

// silence returns the error of a disk that does not answer.
func (f *File) silence() error {
	return fmt.Errorf("keeping %s in state_dir: the disk has not answered for %s", f.name, f.size.patience())
}

// put makes j the next job.
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

// work runs jobs until there are none.
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
			f.rest(min(max(pause, share*time.Since(began)), maxRest), nil)
		case failed != nil:
			f.rest(pause, f.newer)
		}
	}
}

// begin returns the job to run now: the newest, otherwise the one that failed; nil means none.
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

// late notes that the job which began then still runs, if it does.
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

// failure adds to err what it means to users.
func (f *File) failure(err error) error {
	if err == nil || f.unkept == "" {
		return err
	}
	return fmt.Errorf("%s: %w", f.unkept, err)
}

// noteLocked sets the error of the file; nil means none.
func (f *File) noteLocked(err error) {
	old := f.wrong
	if f.wrong = err; fmt.Sprint(old) != fmt.Sprint(err) {
		f.dir.changed()
	}
}

// rest waits for a time, or until there is a newer job if newer is not nil, or until Close.
func (f *File) rest(least time.Duration, newer <-chan struct{}) {
	timer := time.NewTimer(least)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-newer:
	case <-f.dir.closing:
	}
}
