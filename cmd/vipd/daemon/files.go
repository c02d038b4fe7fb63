package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// files keeps in state_dir what must outlive a restart: local overrides, drains, and who holds contested addresses.
// What can't be kept is a problem that is shown, and never stops traffic.
type files struct {
	dir    string
	failed map[string]error // by file: of the last write or of the first read
	tell   func(error)      // is told of an error that is not the one of the last time
}

// The files' contents. Their version is raised when an old program would misread them.
type overridesFile struct {
	Version   int             `json:"version"`
	Overrides []overrideEntry `json:"overrides"`
}

type overrideEntry struct {
	Service balancer.Name `json:"service"`
	Address string        `json:"address"`
	balancer.Override
}

type memoryFile struct {
	Version int            `json:"version"`
	Drains  []drainEntry   `json:"drains"`
	Leaving []leavingEntry `json:"leaving"`
	Holders []holderEntry  `json:"holders"`
}

type leavingEntry struct {
	VIP   netip.Addr `json:"vip"`
	Until time.Time  `json:"until"`
}

type drainEntry struct {
	Frontend balancer.Key   `json:"frontend"`
	Backend  netip.AddrPort `json:"backend"`
	Until    time.Time      `json:"until"`
}

type holderEntry struct {
	Frontend balancer.Key  `json:"frontend"`
	Service  balancer.Name `json:"service"`
}

const fileVersion = 1

// load reads what an earlier run kept. A file that can't be read is set aside as FILE.broken and reported.
func (f *files) load(now time.Time) (balancer.Memory, overrides) {
	var m balancer.Memory
	var o overrides
	if kept := (memoryFile{}); f.read("memory.json", &kept) {
		m = kept.memory()
	}
	if said := (overridesFile{}); f.read("overrides.json", &said) {
		for _, e := range said.Overrides {
			t, err := balancer.ParseTarget(e.Service, e.Address)
			if err != nil {
				f.keep("overrides.json", fmt.Errorf("reading overrides.json: %w", err))
				continue
			}
			o.Map = o.Set(t, &e.Override)
		}
	}
	return m.Expire(now), o.expire(now)
}

// memory returns what the file says.
func (kept *memoryFile) memory() (m balancer.Memory) {
	for _, d := range kept.Drains {
		m.Drains = m.Drains.Set(balancer.DrainKey{Frontend: d.Frontend, Backend: d.Backend}, balancer.Drain{Until: d.Until.UTC()})
	}
	for _, l := range kept.Leaving {
		m.Leaving = m.Leaving.Set(l.VIP, balancer.Drain{Until: l.Until.UTC()})
	}
	for _, h := range kept.Holders {
		m.Holders = m.Holders.Set(h.Frontend, h.Service)
	}
	return m
}

// versioned is the content of any of the files.
type versioned interface{ version() int }

func (o *overridesFile) version() int { return o.Version }
func (kept *memoryFile) version() int { return kept.Version }

// read fills into, and reports whether it did.
func (f *files) read(name string, into versioned) bool {
	path := filepath.Join(f.dir, name)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err == nil && into.version() != fileVersion {
		err = fmt.Errorf("it has version %d; this program reads %d", into.version(), fileVersion)
	}
	if err != nil {
		f.keep(name, fmt.Errorf("reading what an earlier run kept (the file is now %s.broken): %w", path, errors.Join(err, os.Rename(path, path+".broken"))))
	}
	return err == nil
}

// saveOverrides writes the local overrides.
func (f *files) saveOverrides(o overrides) error {
	kept := overridesFile{Version: fileVersion, Overrides: []overrideEntry{}}
	for t, v := range o.All() {
		kept.Overrides = append(kept.Overrides, overrideEntry{t.Service, t.Address(), *v})
	}
	return f.write("overrides.json", kept)
}

// saveMemory writes the drains of endpoints and VIPs, and who holds the keys that more than one service claims.
func (f *files) saveMemory(m balancer.Memory, contested snap.Map[balancer.Key, balancer.Name]) {
	kept := memoryFile{Version: fileVersion, Drains: []drainEntry{}, Leaving: []leavingEntry{}, Holders: []holderEntry{}}
	for k, d := range m.Drains.All() {
		kept.Drains = append(kept.Drains, drainEntry{k.Frontend, k.Backend, d.Until})
	}
	for a, d := range m.Leaving.All() {
		kept.Leaving = append(kept.Leaving, leavingEntry{a, d.Until})
	}
	for k, n := range contested.All() {
		kept.Holders = append(kept.Holders, holderEntry{k, n})
	}
	f.keep("memory.json", f.write("memory.json", kept))
}

// write replaces a file as a whole, so that a crash leaves the old one or the new one.
func (f *files) write(name string, content any) error {
	text, err := json.MarshalIndent(content, "", "\t")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	temporary, err := os.CreateTemp(f.dir, name+".tmp-*")
	if err != nil {
		return fmt.Errorf("keeping state in state_dir: %w", err)
	}
	_, err = temporary.Write(append(text, '\n'))
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), filepath.Join(f.dir, name))
	}
	if err != nil {
		return fmt.Errorf("keeping state in state_dir: %w", errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}

// keep notes the outcome of reading or writing a file, for problems.
func (f *files) keep(name string, err error) {
	if old := f.failed[name]; err != nil && (old == nil || old.Error() != err.Error()) {
		f.tell(err)
	}
	if err == nil {
		delete(f.failed, name)
		return
	}
	f.failed[name] = err
}

// problems returns what could not be kept.
func (f *files) problems() []balancer.Problem {
	var problems []balancer.Problem
	for _, name := range slices.Sorted(maps.Keys(f.failed)) {
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityWarning, Field: "state_dir", Text: f.failed[name].Error(),
		})
	}
	return problems
}
