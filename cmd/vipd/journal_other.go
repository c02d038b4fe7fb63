//go:build !windows

package main

import (
	"io"
	"os"

	systemd "github.com/coreos/go-systemd/v22/journal"
)

// isJournal reports whether w writes to systemd's journal.
func isJournal(w io.Writer) bool {
	is, err := systemd.StderrIsJournalStream()
	return w == os.Stderr && is && err == nil
}
