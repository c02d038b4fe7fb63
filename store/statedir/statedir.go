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
	// parting limits the wait for the last writes when vipd ends.
	parting = 5 * time.Second
	// starting limits the wait for the disk at a start. Nothing is served meanwhile.
	starting = 10 * time.Second
	// pause is the time until a failed write is repeated, and the minimum time between two writes
	// of a Large file. Writing it uses at most one part in share of the time: 100,000 checks are 25
	// MB. After a disk that hung, the maximum is longest.
	pause   = 5 * time.Second
	share   = 20
	maxRest = 5 * time.Minute
)

// Dir is the folder state_dir. A nil Dir keeps nothing. All methods may be called by any goroutine.
type Dir struct {
	path    string
	changed func()
	closing chan struct{}
	writing sync.WaitGroup
	hanging atomic.Int32 // abandoned reads

	mu    sync.Mutex // guards files, and the fields of each that its type names
	files []*File    // in the order of their names
}

// New returns the folder at path. Changed is called when Problems changes; it must not block, and
// must not call Problems.
func New(path string, changed func()) *Dir {
	return &Dir{path: path, changed: changed, closing: make(chan struct{})}
}

// Check returns the problems of the folder, which it may create. A disk that does not answer is not
// an error: the next read reports it.
func (d *Dir) Check(check func(path string) error) error {
	_, err := ask(d, d.path, func() (struct{}, error) { return struct{}{}, check(d.path) })
	if errors.Is(err, errSilent) {
		return nil
	}
	return err
}

// errSilent is the error of a disk that does not answer a start.
var errSilent = fmt.Errorf("the disk has not answered for %s", starting)

// ask returns the result of read, which is about the file at path. A disk that hangs is waited for
// once; then read is left running.
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
	go func() { // ends when the disk answers, like the next one
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

// The sizes. A Large file may be too large to be written after each change.
const (
	Small Size = false
	Large Size = true
)

// patience is the maximum duration of a write before it is a problem. A Large file needs seconds to
// encode, and nobody waits for it.
func (s Size) patience() time.Duration {
	if s == Large {
		return time.Minute
	}
	return 5 * time.Second
}

// File returns the file of a name. unkept names the loss if it can't be written. It has one user,
// who reads it first.
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

// Problems returns the files that could not be written or read.
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

// Close writes all waiting files at once, and waits for them, but only some seconds for a disk that
// hangs. The error names files that were not written. Later writes may be lost. It is called once.
func (d *Dir) Close() error {
	close(d.closing)
	written := make(chan struct{})
	go func() { defer close(written); d.writing.Wait() }() // ends with the writers; Close does not wait for a disk that hangs
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
	return fmt.Errorf("state_dir does not answer: what vipd knew last is not in %s", strings.Join(names, ", "))
}

// lost says why the last state of a file could not be written, or returns nil.
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
