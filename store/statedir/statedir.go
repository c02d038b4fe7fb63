package statedir

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
)

const (
	// parting is the maximum wait for the last writes when vipd exits.
	parting = 5 * time.Second
	// starting is the maximum wait for the disk at startup. Until then, vipd serves nothing.
	starting = 10 * time.Second
	// pause is the time until a failed write is retried, and the minimum time between two writes of
	// a Large file. Writes of a Large file use at most 1/share of the time, because such a file may
	// be 25 MB in size (100,000 checks). The pause after a write is at most maxRest, even if the
	// disk has hung.
	pause   = 5 * time.Second
	share   = 20
	maxRest = 5 * time.Minute
)

// Dir is the folder that state_dir names. A nil Dir saves nothing. Its methods are safe for
// concurrent use.
type Dir struct {
	path    string
	changed func()
	closing chan struct{}
	writing sync.WaitGroup
	hanging atomic.Int32 // number of abandoned reads that still wait for the disk

	mu    sync.Mutex // guards files, and some fields of each File (see there)
	files []*File    // sorted by name
}

// New returns the folder at path. The function changed is called when the result of Problems
// changes. It must not block, and must not call Problems.
func New(path string, changed func()) *Dir {
	return &Dir{path: path, changed: changed, closing: make(chan struct{})}
}

// Check calls the function check with the path of the folder, and returns its error. The function
// may create the folder. A disk that does not answer is not an error here, because the next read
// reports it.
func (d *Dir) Check(check func(path string) error) error {
	_, err := ask(d, d.path, func() (struct{}, error) { return struct{}{}, check(d.path) })
	if errors.Is(err, errSilent) {
		return nil
	}
	return err
}

// errSilent means that the disk did not answer in time at startup.
var errSilent = fmt.Errorf("the disk has not answered for %s", starting)

// ask returns the result of the function read, which reads the file at path. If the disk hangs, ask
// returns an error and leaves read running. Until the disk answers, later calls do not wait.
func ask[T any](d *Dir, path string, read func() (T, error)) (answer T, err error) {
	silent := &os.PathError{Op: "open", Path: path, Err: errSilent}
	if d.hanging.Load() > 0 {
		return answer, silent
	}
	type result struct {
		answer T
		err    error
	}
	answered := make(chan result, 1)
	go func() { // this goroutine and the next end when the disk answers
		answer, err := read()
		answered <- result{answer, err}
	}()
	select {
	case r := <-answered:
		return r.answer, r.err
	case <-time.After(starting):
	}
	d.hanging.Add(1)
	go func() { <-answered; d.hanging.Add(-1) }()
	return answer, silent
}

// Size is a class of file sizes.
type Size bool

// These are the sizes. A Large file can be too large to write after each change.
const (
	Small Size = false
	Large Size = true
)

// patience is how long a write may take before it is reported as a problem. It is longer for a
// Large file, whose encoding takes seconds.
func (s Size) patience() time.Duration {
	if s == Large {
		return time.Minute
	}
	return 5 * time.Second
}

// File returns the file called name. The text unkept describes the consequence for users if the
// file can't be written. Each file must have only one user, which must read the file before writing
// it.
func (d *Dir) File(name, unkept string, size Size) *File {
	if d == nil {
		return nil
	}
	f := &File{dir: d, name: name, unkept: unkept, size: size, newer: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files = append(d.files, f)
	slices.SortFunc(d.files, func(a, b *File) int { return strings.Compare(a.name, b.name) })
	return f
}

// Problems returns a problem for each file that could not be written or read.
func (d *Dir) Problems() (problems []balancer.Problem) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if f.wrong != nil {
			problems = append(problems, balancer.Problem{Severity: balancer.SeverityWarning, Field: "state_dir", Text: f.wrong.Error()})
		}
	}
	return problems
}

// Close writes all waiting files immediately, and waits for the writes. If the disk hangs, it waits
// only several seconds. The error names the files that were not written. Later writes may be lost.
// Close must be called once.
func (d *Dir) Close() error {
	close(d.closing)
	written := make(chan struct{})
	go func() { defer close(written); d.writing.Wait() }() // this goroutine ends with the writers, but Close does not wait for a disk that hangs
	select {
	case <-written:
		return d.lost()
	case <-time.After(parting):
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for _, f := range d.files {
		if f.busy {
			names = append(names, f.name)
		}
	}
	return fmt.Errorf("state_dir does not answer: the latest state was not saved in %s", strings.Join(names, ", "))
}

// lost returns the reason why a file's last state could not be written, or nil.
func (d *Dir) lost() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		err = errors.Join(err, f.lost)
	}
	return err
}

func (d *Dir) isClosing() bool {
	select {
	case <-d.closing:
		return true
	default:
		return false
	}
}
