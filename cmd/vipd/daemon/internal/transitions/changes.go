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

// ChangesOfFiles returns the services of files that differ in s from before, and those that stay in their last good state because of an
// error. Its cost is that of comparing what differs. A service whose text has only moved has not changed.
func ChangesOfFiles(before snap.Map[balancer.Name, *balancer.Service], s *store.Snapshot) api.ReloadChanges {
	c := api.ReloadChanges{Kept: s.Retained, Vanished: s.Vanished}
	for name, is := range snap.Diff(before, s.Services) {
		had, has := is.HadOld && is.Old.Origin.File != "", is.HasNew && is.New.Origin.File != ""
		switch {
		case had && has && !sameDefinition(is.Old, is.New):
			c.Changed = append(c.Changed, name)
		case has && !had:
			c.Added = append(c.Added, name)
		case had && !has:
			c.Removed = append(c.Removed, name)
		}
	}
	return c
}

// sameDefinition reports whether two services say the same, wherever they were read.
func sameDefinition(a, b *balancer.Service) bool {
	x, y := *a, *b
	x.Origin, y.Origin = balancer.Origin{}, balancer.Origin{}
	return reflect.DeepEqual(x, y)
}

// namesShown bounds the names of one kind of change in an event.
const namesShown = 10

// inWords writes changes for an event: "+ a, b; - c".
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
		text := kind.sign + wording.Some(names, namesShown)
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
