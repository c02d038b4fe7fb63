package transitions

import (
	"reflect"
	"strings"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/wording"
	"vipd/store"
)

// ChangesOfFiles returns the services in files that differ between before and s, and the services
// that keep their last valid state because of an error. A service that only moved within the files
// has not changed. The cost is proportional to the number of changes.
func ChangesOfFiles(before snap.Map[balancer.Name, *balancer.Service], s *store.Snapshot) api.ReloadChanges {
	c := api.ReloadChanges{Kept: s.Retained, Vanished: s.Vanished}
	for name, change := range snap.Diff(before, s.Services) {
		had, has := change.HadOld && change.Old.Origin.File != "", change.HasNew && change.New.Origin.File != ""
		switch {
		case had && has && !sameDefinition(change.Old, change.New):
			c.Changed = append(c.Changed, name)
		case has && !had:
			c.Added = append(c.Added, name)
		case had && !has:
			c.Removed = append(c.Removed, name)
		}
	}
	return c
}

// sameDefinition reports whether two services are equal, ignoring where in the files they are
// defined.
func sameDefinition(a, b *balancer.Service) bool {
	x, y := *a, *b
	x.Origin, y.Origin = balancer.Origin{}, balancer.Origin{}
	return reflect.DeepEqual(x, y)
}

// maxNames is the maximum number of names per kind of change in an event.
const maxNames = 10

// inWords formats changes for an event, such as "+ a, b; - c".
func inWords(c api.ReloadChanges) string {
	var all []string
	for _, kind := range []struct {
		sign  string
		names []balancer.Name
	}{{"+ ", c.Added}, {"~ ", c.Changed}, {"- ", c.Removed}, {"= ", c.Kept}} {
		if len(kind.names) == 0 {
			continue
		}
		names := make([]string, len(kind.names))
		for i, n := range kind.names {
			names[i] = string(n)
		}
		text := kind.sign + wording.Some(names, maxNames)
		if kind.sign == "= " {
			text += " kept because of an error"
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return "no changes"
	}
	return strings.Join(all, "; ")
}
