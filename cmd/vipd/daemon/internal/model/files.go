package model

import (
	"bufio"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store/statedir"
)

// files stores the local overrides, and the memory, which consists of drains and of holders of
// contested addresses.
type files struct{ overrides, memory *statedir.File }

func newFiles(dir *statedir.Dir) files {
	return files{
		overrides: dir.File("overrides.json", "drains and weights are refused", statedir.Small),
		memory:    dir.File("memory.json", "", statedir.Small),
	}
}

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
	Saved   time.Time      `json:"saved,omitzero"`
	Drains  []drainEntry   `json:"drains"`
	Leaving []leavingEntry `json:"leaving"`
	Holders []holderEntry  `json:"holders"`
	Ramps   []rampEntry    `json:"ramps"`
	Away    []awayEntry    `json:"away"`
}

// rampEntry is a slow start. It has no step, because the step follows from the time.
type rampEntry struct {
	balancer.BackendKey
	Since time.Time     `json:"since"`
	Over  time.Duration `json:"over_ns"`
}

// awayEntry is a VIP that is withdrawn for a limited time.
type awayEntry struct {
	VIP   netip.Addr `json:"vip"`
	Until time.Time  `json:"until"`
}

type leavingEntry struct {
	VIP netip.Addr `json:"vip"`
	balancer.Drain
}

type drainEntry struct {
	balancer.BackendKey
	balancer.Drain
}

type holderEntry struct {
	Frontend balancer.Key  `json:"frontend"`
	Service  balancer.Name `json:"service"`
}

// load reads the files that the previous run saved. It also returns overrides that have expired,
// because their expiry must be recorded as an event.
func (f files) load(now time.Time) (balancer.Memory, Overrides) {
	var m balancer.Memory
	var o Overrides
	if kept := (memoryFile{}); f.memory.Read(&kept) {
		m = kept.memory()
		if kept.Saved.After(now) { // the clock is behind; all times are corrected when it is set
			m = m.AdjustClock(now.Sub(kept.Saved))
		}
	}
	if file := (overridesFile{}); f.overrides.Read(&file) {
		for _, e := range file.Overrides {
			t, err := balancer.ParseTarget(e.Service, e.Address)
			if err != nil {
				f.overrides.Refuse(err)
				continue
			}
			o.Map = o.Set(t, &e.Override)
		}
	}
	return m.Expire(now), o
}

func (kept *memoryFile) memory() (m balancer.Memory) {
	for _, d := range kept.Drains {
		m.Drains = m.Drains.Set(d.BackendKey, balancer.Drain{Until: d.Until.UTC()})
	}
	for _, l := range kept.Leaving {
		m.DrainingVIPs = m.DrainingVIPs.Set(l.VIP, balancer.Drain{Until: l.Until.UTC()})
	}
	for _, h := range kept.Holders {
		m.Holders = m.Holders.Set(h.Frontend, h.Service)
	}
	for _, r := range kept.Ramps {
		m.Ramps = m.Ramps.Set(r.BackendKey, balancer.Ramp{Since: r.Since.UTC(), Duration: r.Over})
	}
	for _, a := range kept.Away {
		m.Withdrawals = m.Withdrawals.Set(a.VIP, balancer.Withdrawal{Withdrawn: true, Until: a.Until.UTC()})
	}
	return m
}

// textOf returns a function that writes the overrides o as a file.
func textOf(o Overrides) func(*bufio.Writer) error {
	kept := overridesFile{Version: statedir.Version, Overrides: []overrideEntry{}}
	for t, v := range o.All() {
		kept.Overrides = append(kept.Overrides, overrideEntry{t.Service, t.Address(), *v})
	}
	return statedir.Text(kept)
}

// keepMemory saves the memory of endpoints and VIPs, and the holders of keys that several services
// claim.
func (f files) keepMemory(m balancer.Memory, contested snap.Map[balancer.Key, balancer.Name], now time.Time) {
	kept := memoryFile{
		Version: statedir.Version, Saved: now.UTC(), Drains: []drainEntry{}, Leaving: []leavingEntry{}, Holders: []holderEntry{}, Ramps: []rampEntry{}, Away: []awayEntry{},
	}
	for k, d := range m.Drains.All() {
		kept.Drains = append(kept.Drains, drainEntry{k, d})
	}
	for a, d := range m.DrainingVIPs.All() {
		kept.Leaving = append(kept.Leaving, leavingEntry{a, d})
	}
	for k, n := range contested.All() {
		kept.Holders = append(kept.Holders, holderEntry{k, n})
	}
	for k, r := range m.Ramps.All() {
		kept.Ramps = append(kept.Ramps, rampEntry{k, r.Since, r.Duration})
	}
	for a, withdrawal := range m.Withdrawals.All() {
		if withdrawal.Withdrawn && !withdrawal.Until.IsZero() {
			kept.Away = append(kept.Away, awayEntry{a, withdrawal.Until})
		}
	}
	f.memory.Keep(statedir.Text(kept))
}

// worthSaving reports whether an entry was added or removed. Steps of a slow start don't count.
func worthSaving(before, now balancer.Memory) bool {
	for _, c := range snap.Diff(before.Ramps, now.Ramps) {
		if !c.HadOld || !c.HasNew || c.Old.Since != c.New.Since {
			return true
		}
	}
	return before.Drains != now.Drains || before.DrainingVIPs != now.DrainingVIPs || before.Withdrawals != now.Withdrawals
}
