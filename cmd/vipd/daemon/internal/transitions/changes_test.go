package transitions

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
)

// TestReloadNamesEachService reloads files that add, remove, change and keep many services. The
// events must name each of these services once, and each event must be short.
func TestReloadNamesEachService(t *testing.T) {
	var last, next model.State
	want := map[string]bool{}
	for i := range 2000 {
		name := balancer.Name(fmt.Sprintf("service-%d", i))
		old := &balancer.Service{Name: name, Origin: balancer.Origin{File: "vipd.toml", Line: 1}}
		changed := &balancer.Service{Name: name, Origin: old.Origin, Endpoints: []balancer.Endpoint{{}}}
		before, after := &last.Snapshot.Services, &next.Snapshot.Services
		sign := []string{"+", "-", "~", "="}[i%4]
		switch sign {
		case "+":
			*after = after.Set(name, old)
		case "-":
			*before = before.Set(name, old)
		case "~":
			*before, *after = before.Set(name, old), after.Set(name, changed)
		case "=":
			*before, *after = before.Set(name, old), after.Set(name, old)
			next.Snapshot.Retained = append(next.Snapshot.Retained, name)
		}
		want[sign+" "+string(name)] = true
	}
	history := events.New(events.Options{Log: slog.New(slog.DiscardHandler)})
	New(Options{Events: history}).Reloads(&last, "a file has changed")(&next, nil, nil)
	recorded, _ := history.Read(0, 0)
	for _, e := range recorded {
		if len(e.Text) > 1000 {
			t.Errorf("length of the event %q = %d, want at most 1000", e.Text, len(e.Text))
		}
		_, list, _ := strings.Cut(e.Text, ": ")
		if _, names, first := strings.Cut(list, "services ("); first {
			list, _, _ = strings.Cut(names, ")")
		}
		for part := range strings.SplitSeq(list, "; ") {
			sign, names, _ := strings.Cut(part, " ")
			for name := range strings.SplitSeq(strings.TrimSuffix(names, " kept because of an error"), ", ") {
				name, _, _ = strings.Cut(name, " and ")
				if !want[sign+" "+name] {
					t.Errorf("the event %q names %s %s, want each service once", e.Text, sign, name)
				}
				delete(want, sign+" "+name)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("services that no event names = %d, want none", len(want))
	}
}
