package checks

import (
	"log/slog"

	"vipd/cmd/internal/journal"
	"vipd/cmd/vipd/daemon/internal/fleetchecks"
	"vipd/cmd/vipd/daemon/internal/statedir"
)

const leaseFile = "healthlease.json"

// keptLease is the content of that file: under which lease this node has told the fleet what it has found.
type keptLease struct {
	Version int   `json:"version"`
	Lease   int64 `json:"lease"`
}

// FileVersion is for statedir.
func (k *keptLease) FileVersion() int { return k.Version }

// outlive has the lease of a run that is killed be known to the next, which takes back at once what that one has said.
func (o *Options) outlive(fleet *fleetchecks.Options) {
	lifetime := fleet.Lease
	files := statedir.New(o.StateDir, func(err error) {
		o.Journal.Record(journal.Event{
			Kind: journal.Problem, Level: slog.LevelWarn,
			Text:  "after a crash, what this node tells the fleet of health counts for " + lifetime.String(),
			Cause: err.Error(),
		})
	})
	var kept keptLease
	files.Read(leaseFile, &kept)
	fleet.Former = kept.Lease
	fleet.Keep = func(lease int64) {
		files.Note(leaseFile, files.Write(leaseFile, keptLease{statedir.Version, lease}))
	}
}
