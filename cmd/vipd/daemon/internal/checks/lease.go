package checks

import (
	"vipd/cmd/vipd/daemon/internal/fleetchecks"
	"vipd/cmd/vipd/daemon/internal/statedir"
)

const leaseFile = "healthlease.json"

// keptLease is the content of that file: under which lease this node has told the fleet what it has found.
type keptLease struct {
	Version int   `json:"version"`
	Lease   int64 `json:"lease"`
}

// outlive has the lease of a run that is killed be known to the next, which takes back at once what that one has said.
func (c *Checks) outlive(fleet *fleetchecks.Options) {
	lifetime := fleet.Lease
	var kept keptLease
	c.files.Read(leaseFile, &kept)
	fleet.Former = kept.Lease
	fleet.Keep = func(lease int64) {
		err := c.files.Write(leaseFile, keptLease{statedir.Version, lease})
		c.files.Note(leaseFile, because("after a crash, what this node tells the fleet of health counts for "+lifetime.String(), err))
	}
}
