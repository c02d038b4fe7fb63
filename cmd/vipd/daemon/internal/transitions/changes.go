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

// maxNames is the maximum number of names per kind of change in the first event about it.
const maxNames = 10

// maxNamesLength is the number of bytes after which a list of names continues in the next event,
// because a syslog may cut lines after 1,024 bytes.
const maxNamesLength = 800

// inWords formats changes for an event, such as "+ a, b; - c". If there are too many names for one
// event, rest contains the texts of further events, which list the other names.
func inWords(c api.ReloadChanges) (text string, rest []string) {
	var all []string
	for _, kind := range []struct {
		sign, why string
		names     []balancer.Name
	}{{"+ ", "", c.Added}, {"~ ", "", c.Changed}, {"- ", "", c.Removed}, {"= ", " kept because of an error", c.Kept}} {
		if len(kind.names) == 0 {
			continue
		}
		names := make([]string, len(kind.names))
		for i, n := range kind.names {
			names[i] = string(n)
		}
		all = append(all, kind.sign+wording.Some(names, maxNames)+kind.why)
		for _, part := range inParts(names[min(len(names), maxNames):]) {
			rest = append(rest, kind.sign+part+kind.why)
		}
	}
	if len(all) == 0 {
		return "no changes", nil
	}
	return strings.Join(all, "; "), rest
}

// inParts lists names in texts of about maxNamesLength bytes.
func inParts(names []string) (parts []string) {
	length := 0
	for i, from := 0, 0; i < len(names); i++ {
		length += len(names[i]) + len(", ")
		if length >= maxNamesLength || i == len(names)-1 {
			parts = append(parts, strings.Join(names[from:i+1], ", "))
			from, length = i+1, 0
		}
	}
	return parts
}
