package main

import "io"

// isJournal reports whether w writes to the event log, which takes priorities as systemd's journal does.
func isJournal(w io.Writer) bool {
	_, ok := w.(eventWriter)
	return ok
}
