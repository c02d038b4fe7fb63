package transitions

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/wording"
	"vipd/cmd/vipd/daemon/internal/model"
)

// recordNames records the addresses that were added to or removed from lookup answers.
func (r *Tracker) recordNames(last, s *model.State, now time.Time) {
	for id, c := range snap.Diff(last.Inputs.Resolved, s.Inputs.Resolved) {
		if !c.HadOld || !c.HasNew {
			continue // the lookup is new, because its definition has changed
		}
		before, after := addressesOf(c.Old.Records), addressesOf(c.New.Records)
		var parts []string
		for _, part := range []struct {
			word      string
			with, not map[string]bool
		}{{"joined", after, before}, {"left", before, after}} {
			changed := maps.Clone(part.with)
			maps.DeleteFunc(changed, func(a string, _ bool) bool { return part.not[a] })
			if len(changed) > 0 {
				parts = append(parts, wording.Some(slices.Sorted(maps.Keys(changed)), maxNames)+" "+part.word)
			}
		}
		if parts != nil {
			r.o.Events.Record(events.Event{At: now, Kind: events.Names, Service: id.Service, Text: fmt.Sprintf("follows %s: %s", id.Lookup, strings.Join(parts, "; "))})
		}
	}
}

// addressesOf returns the addresses of members, with their ports if the answer has ports.
func addressesOf(members []balancer.LookupRecord) map[string]bool {
	all := make(map[string]bool, len(members))
	for _, m := range members {
		if m.Port == 0 {
			all[m.Addr.String()] = true
		} else {
			all[netip.AddrPortFrom(m.Addr, m.Port).String()] = true
		}
	}
	return all
}
