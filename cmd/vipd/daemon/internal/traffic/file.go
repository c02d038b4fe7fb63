package traffic

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/atomicfile"
	"vipd/cmd/internal/config"
	"vipd/dataplane/counters"
)

// FileName is the name of the file in run_dir that stores the sums.
const FileName = "counts.json"

// file saves the sums for the next process. The zero value does nothing.
type file struct {
	path   string
	log    *slog.Logger
	failed bool // set once a failure was logged
	// last is the reading that the file contains.
	last reading
	// size is the length of the file. whole is its length after the last replacement, or 0 if this
	// process has not written the file.
	size, whole int64
}

// reading is an immutable set of counts: all sums, and the part of them that kernel objects still
// hold, by mode.
type reading struct {
	all  map[counters.BackendKey]amount
	kept map[config.ModeName]map[counters.BackendKey]amount
}

// savedCount is a line of the file: the counts of a backend or of a whole port. If several lines
// have the same key, the last is valid.
type savedCount struct {
	Service  balancer.Name  `json:"service"`
	Port     string         `json:"port,omitempty"`
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	amount
	// Kernel is the part that kernel objects hold, by mode.
	Kernel map[config.ModeName]amount `json:"kernel,omitempty"`
}

// Open reads the sums that a previous process stored in runDir, and stores new sums there.
func (t *Counters) Open(runDir string, log *slog.Logger) {
	t.file = file{path: filepath.Join(runDir, FileName), log: log}
	entries, err := t.file.read()
	if err != nil {
		log.Warn("counters start at the kernel's values, because the counts of an earlier vipd can't be read", "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := sums{all: map[counters.BackendKey]amount{}}
	for _, e := range entries {
		k := e.key()
		all.all[k] = e.amount
		t.goneLocked().Add(k, e.amount, time.Now())
		for mode, a := range e.Kernel {
			if t.left[mode] == nil {
				t.leaveLocked(mode, map[counters.BackendKey]amount{})
			}
			t.left[mode][k] = a
		}
	}
	t.last = all.ports() // until the first reading is complete
}

// entry returns a backend's line in the file.
func (r reading) entry(k counters.BackendKey) savedCount {
	e := savedCount{Service: k.Service, Port: k.Name, Endpoint: k.Addr, amount: r.all[k]}
	for mode, amounts := range r.kept {
		if had := amounts[k]; had != (amount{}) {
			if e.Kernel == nil {
				e.Kernel = map[config.ModeName]amount{}
			}
			e.Kernel[mode] = had
		}
	}
	return e
}

// same reports whether a backend has the same line in both readings.
func (r reading) same(k counters.BackendKey, before reading) bool {
	if r.all[k] != before.all[k] {
		return false
	}
	for mode, amounts := range r.kept {
		if amounts[k] != before.kept[mode][k] {
			return false
		}
	}
	for mode, amounts := range before.kept {
		if amounts[k] != r.kept[mode][k] {
			return false
		}
	}
	return true
}

// changed returns the backends whose lines differ between the two readings.
func (r reading) changed(before reading) (keys []counters.BackendKey) {
	for k := range r.all {
		if !r.same(k, before) {
			keys = append(keys, k)
		}
	}
	for k := range before.all { // the counts of a dropped backend were added to its port
		if _, there := r.all[k]; !there {
			keys = append(keys, k)
		}
	}
	return keys
}

func (f *file) read() (all []savedCount, err error) {
	in, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }() // nothing was written
	last := map[counters.BackendKey]int{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // vipd was killed before it had written the last line
			return all, nil
		}
		var e savedCount
		if err == nil {
			err = json.Unmarshal(line, &e)
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", f.path, err)
		}
		if i, again := last[e.key()]; again {
			all[i] = e
			continue
		}
		last[e.key()] = len(all)
		all = append(all, e)
	}
}

func (e *savedCount) key() counters.BackendKey {
	return counters.BackendKey{Port: counters.Port{Service: e.Service, Name: e.Port}, Addr: e.Endpoint}
}

// keep saves the counts. It appends changed lines, and rewrites the file when its length has
// doubled.
func (f *file) keep(now reading) {
	if f.path == "" {
		return
	}
	keys := now.changed(f.last)
	if len(keys) == 0 && !f.failed {
		return
	}
	err := f.append(now, keys)
	if err != nil {
		err = f.replace(now)
	}
	if err != nil && !f.failed {
		f.log.Warn("counters can't be saved (run_dir must be writable); the next vipd will start at the kernel's values", "err", err)
	}
	f.last, f.failed = now, err != nil
}

// shortest is the length below which a file is not rewritten.
const shortest = 1 << 16

// errWhole means that the file must be rewritten as a whole.
var errWhole = errors.New("the file is too long, or differs from what was last written")

// append adds lines to the file. It returns errWhole if the file must be rewritten instead.
func (f *file) append(now reading, keys []counters.BackendKey) error {
	if f.failed || f.size >= 2*f.whole {
		return errWhole
	}
	out, err := os.OpenFile(f.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if info, err := out.Stat(); err != nil || info.Size() != f.size {
		return errors.Join(errWhole, out.Close())
	}
	w := bufio.NewWriterSize(out, 1<<16)
	err = errors.Join(writeEntries(w, now, slices.Values(keys), true), w.Flush())
	is, failed := out.Stat()
	if err = errors.Join(err, failed, out.Close()); err == nil {
		f.size = is.Size()
	}
	return err
}

// replace rewrites the file without zero entries.
func (f *file) replace(now reading) error {
	f.size, f.whole = 0, 0
	err := atomicfile.Write(f.path, atomicfile.ThisBoot, func(w *bufio.Writer) error { return writeEntries(w, now, maps.Keys(now.all), false) })
	if err == nil {
		var is os.FileInfo
		if is, err = os.Stat(f.path); err == nil {
			f.size, f.whole = is.Size(), max(is.Size(), shortest)
		}
	}
	return err
}

// writeEntries writes a line for each key. It omits zero entries unless empty is true.
func writeEntries(to io.Writer, now reading, keys iter.Seq[counters.BackendKey], empty bool) error {
	lines := json.NewEncoder(to)
	for k := range keys {
		if e := now.entry(k); empty || e.amount != (amount{}) || e.Kernel != nil {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
	}
	return nil
}
