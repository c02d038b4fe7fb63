package statedir

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/atomicfile"
)

// Version is what files are written with. It is raised when an old program would misread them.
const Version = 1

// Dir is a folder of files, each of which is written and read as a whole. Its methods may be called by any goroutine, those
// about one file by one at a time.
type Dir struct {
	path    string
	changed func()

	mu     sync.Mutex       // guards failed
	failed map[string]error // by file: of the last write or of the first read
}

// New returns the folder at path. Changed is called when Note has made Problems others; it must not block.
func New(path string, changed func()) *Dir {
	return &Dir{path: path, failed: map[string]error{}, changed: changed}
}

// Read fills into, and reports whether it did. A file that can't be read is set aside as NAME.broken, and noted.
func (d *Dir) Read(name string, into any) bool {
	path := filepath.Join(d.path, name)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	var head struct {
		Version int `json:"version"`
	}
	if err == nil {
		err = json.Unmarshal(text, &head)
	}
	if err == nil && head.Version != Version {
		err = fmt.Errorf("it has version %d; this program reads %d", head.Version, Version)
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		d.note(name, fmt.Errorf("reading what an earlier run kept: %w", atomicfile.SetAside(path, err)))
	}
	return err == nil
}

// Write replaces a file as a whole, so that a crash leaves the old one or the new one.
func (d *Dir) Write(name string, content any) error {
	text, err := json.MarshalIndent(content, "", "\t")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	write := func(w *bufio.Writer) error { _, err := w.Write(append(text, '\n')); return err }
	if err := atomicfile.Write(filepath.Join(d.path, name), atomicfile.Lasting, write); err != nil {
		return fmt.Errorf("keeping %s in state_dir: %w", name, err)
	}
	return nil
}

// Held is until when what a file says was so: it was written or confirmed then. Zero: that is not known.
func (d *Dir) Held(name string) time.Time {
	info, err := os.Stat(filepath.Join(d.path, name))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Confirm notes that what was written is still so. What can't be noted counts as not so for as long.
func (d *Dir) Confirm(name string) {
	_ = os.Chtimes(filepath.Join(d.path, name), time.Time{}, time.Now())
}

// Note keeps the outcome of reading or writing a file, for Problems.
func (d *Dir) Note(name string, err error) {
	if d.note(name, err) {
		d.changed()
	}
}

// note is Note, and reports whether the outcome is another than the last one.
func (d *Dir) note(name string, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.failed[name]
	if err == nil {
		delete(d.failed, name)
		return old != nil
	}
	d.failed[name] = err
	return old == nil || old.Error() != err.Error()
}

// Problems returns what could not be kept.
func (d *Dir) Problems() []balancer.Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	var problems []balancer.Problem
	for _, name := range slices.Sorted(maps.Keys(d.failed)) {
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityWarning, Field: "state_dir", Text: d.failed[name].Error(),
		})
	}
	return problems
}
