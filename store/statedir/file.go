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

// Version is the version of files that Read accepts. It must be increased whenever an older program
// would misread a file.
const Version = 1

// File is a file in state_dir. On a nil File, Keep, Read, Load and Held do nothing. Its methods are
// safe for concurrent use. Only the methods that read wait for the disk.
type File struct {
	dir          *Dir
	name, unkept string
	size         Size
	newer        chan struct{} // sent when next is set

	// Dir.mu guards the fields below.
	next  *job
	busy  bool      // a goroutine runs jobs, or pauses between them
	since time.Time // when the current job started, or zero if no job is running
	wrong error     // error of the last write, or of the first read
	lost  error     // error of a write after Close
}

// job is an operation on a file.
type job struct {
	do func() error
	// done receives the result. It may be nil.
	done func(error)
	// confirms reports whether the job only confirms that the content is unchanged.
	confirms bool
}

// Text returns a function that writes content as indented JSON. The caller must not modify content
// afterwards.
func Text(content any) func(*bufio.Writer) error {
	return func(w *bufio.Writer) error {
		lines := json.NewEncoder(w)
		lines.SetIndent("", "\t")
		return lines.Encode(content)
	}
}

// Path returns the path of the file.
func (f *File) Path() string { return filepath.Join(f.dir.path, f.name) }

// Read decodes a file that Text has written, stores the result in into, and reports whether it
// succeeded. A file that can't be decoded is set aside, and is a problem until the next write.
func (f *File) Read(into any) (read bool) {
	read, err := f.Decode(into)
	if err != nil {
		f.Refuse(err)
	}
	return read
}

// Decode works like Read, but returns the error instead of recording it. A missing file is not an
// error.
func (f *File) Decode(into any) (read bool, err error) {
	err = f.Load(func(text []byte) error {
		var head struct {
			Version int `json:"version"`
		}
		err := json.Unmarshal(text, &head)
		if err == nil && head.Version != Version {
			err = fmt.Errorf("it has version %d, but this program reads only version %d", head.Version, Version)
		}
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		read = err == nil
		return err
	})
	return read, err
}

// Refuse records err as a problem. It is the reason why part of the file could not be read.
func (f *File) Refuse(err error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	f.noteLocked(fmt.Errorf("reading the state of an earlier run: %w", err))
}

// Load calls the function decode with the content that an earlier process has saved. If decode
// fails, Load renames the file to NAME.broken, and reports this in its error. A file that can't be
// read is left unchanged until the next write.
func (f *File) Load(decode func(text []byte) error) error {
	if f == nil {
		return nil
	}
	text, err := ask(f.dir, f.Path(), func() ([]byte, error) { return os.ReadFile(f.Path()) })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w; the file is left unchanged", err)
	}
	return atomicfile.SetAside(f.Path(), decode(text))
}

// Held returns when the content was last written or confirmed, or zero if that is unknown.
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

// Keep requests a write of the file. It replaces an earlier job that has not started.
func (f *File) Keep(write func(*bufio.Writer) error) {
	if f != nil {
		f.put(&job{do: func() error { return f.replace(write) }})
	}
}

// Write requests a write like [File.Keep], and sends the result on the returned channel. If the
// disk does not answer, it sends an error. In this case, the file may still be written later,
// unless a newer job replaces this one. If the disk already hangs, Write sends the error
// immediately.
func (f *File) Write(write func(*bufio.Writer) error) <-chan error {
	outcome := make(chan error, 1)
	tell := func(err error) {
		select {
		case outcome <- err:
		default: // a result was already sent
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

// Confirm records that the last content is still valid. Without confirmations, the content counts
// as outdated.
func (f *File) Confirm() {
	f.put(&job{confirms: true, do: func() error {
		_ = os.Chtimes(f.Path(), time.Time{}, time.Now())
		return nil
	}})
}

func (f *File) replace(write func(*bufio.Writer) error) error {
	if err := atomicfile.Write(f.Path(), atomicfile.Lasting, write); err != nil {
		return fmt.Errorf("saving %s in state_dir: %w", f.name, err)
	}
	return nil
}

// silence returns the error for a disk that does not answer.
func (f *File) silence() error {
	return fmt.Errorf("saving %s in state_dir: the disk has not answered for %s", f.name, f.size.patience())
}

// put makes j the next job. A job that only confirms the content does not replace another waiting
// job.
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

// work runs jobs until no job is waiting.
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

// begin returns the job to run now, or nil if there is none. It returns the failed job, if any,
// unless a newer job writes the file.
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
	f.next = nil
	f.busy = j != nil
	f.since = time.Now()
	return j, f.since
}

// late records that the job that started at began is taking too long, if it is still running.
func (f *File) late(began time.Time) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if f.since.Equal(began) {
		f.noteLocked(f.failure(f.silence()))
	}
}

// ended records the result of a job, and passes it to the job's done function.
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

// failure adds the consequence for users to err.
func (f *File) failure(err error) error {
	if err == nil || f.unkept == "" {
		return err
	}
	return fmt.Errorf("%s: %w", f.unkept, err)
}

// noteLocked sets the file's error. A nil error clears it.
func (f *File) noteLocked(err error) {
	old := f.wrong
	if f.wrong = err; fmt.Sprint(old) != fmt.Sprint(err) {
		f.dir.changed()
	}
}

// rest waits for the duration least. It returns earlier after Close or, if newer is not nil, when a
// newer job arrives.
func (f *File) rest(least time.Duration, newer <-chan struct{}) {
	timer := time.NewTimer(least)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-newer:
	case <-f.dir.closing:
	}
}
