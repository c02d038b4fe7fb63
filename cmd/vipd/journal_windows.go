package main

import "io"

// isJournal reports whether w writes to the event log, which accepts priorities in the form of
// systemd's journal.
func isJournal(w io.Writer) bool {
	_, ok := w.(eventWriter)
	return ok
}
