package counters

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"vipd/balancer"
	"vipd/balancer/atomicfile"
	"vipd/cmd/internal/config"
	"vipd/dataplane/counters"
)

// FileName is the name of the file in run_dir that keeps the sums.
const FileName = "counts.json"

// file keeps the sums for the next process. Its zero value keeps nothing.
type file struct {
	path   string
	log    *slog.Logger
	failed bool // told once
}

// entry is a line of the file: what was counted of a backend, or of a port as a whole.
type entry struct {
	Service  balancer.Name  `json:"service"`
	Port     string         `json:"port,omitempty"`
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	amount
	// Kernel is what the kernel had of it, by the mode whose objects those are.
	Kernel map[config.ModeName]amount `json:"kernel,omitempty"`
}

// Open goes on with the sums that an earlier process has left in a run_dir, and keeps them there.
func (t *Process) Open(runDir string, log *slog.Logger) {
	t.file = file{path: filepath.Join(runDir, FileName), log: log}
	entries, err := t.file.read()
	if err != nil {
		log.Warn("counters begin at what the kernel has: what an earlier vipd counted can't be read", "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := sums{all: map[counters.Backend]amount{}}
	for _, e := range entries {
		k := counters.Backend{Port: counters.Port{Service: e.Service, Name: e.Port}, Addr: e.Endpoint}
		all.all[k] = e.amount
		t.goneLocked().Add(k, e.amount, time.Now())
		for mode, a := range e.Kernel {
			if t.left[mode] == nil {
				t.leaveLocked(mode, map[counters.Backend]amount{})
			}
			t.left[mode][k] = a
		}
	}
	t.last = all.ports() // until a first reading has ended
}

func (f *file) read() (all []entry, err error) {
	in, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }() // nothing was written
	lines := json.NewDecoder(bufio.NewReader(in))
	for {
		var e entry
		switch err := lines.Decode(&e); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", f.path, err)
		}
		all = append(all, e)
	}
}

// write replaces the file. What was not counted is not in it.
func (f *file) write(all map[counters.Backend]amount, kept map[config.ModeName]map[counters.Backend]amount) {
	if f.path == "" {
		return
	}
	err := atomicfile.Write(f.path, atomicfile.ThisBoot, func(w *bufio.Writer) error {
		lines := json.NewEncoder(w)
		for k, a := range all {
			e := entry{Service: k.Service, Port: k.Name, Endpoint: k.Addr, amount: a}
			for mode, of := range kept {
				if had := of[k]; had != (amount{}) {
					if e.Kernel == nil {
						e.Kernel = map[config.ModeName]amount{}
					}
					e.Kernel[mode] = had
				}
			}
			if a == (amount{}) && e.Kernel == nil {
				continue
			}
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !f.failed {
		f.log.Warn("counters can't be kept for the next vipd, which begins at what the kernel has then (run_dir must be writable)", "err", err)
	}
	f.failed = err != nil
}
