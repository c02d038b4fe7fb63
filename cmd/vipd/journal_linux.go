package main

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// isJournal reports whether w leads to systemd's journal: JOURNAL_STREAM, which children inherit, names the one that it
// is about.
func isJournal(w io.Writer, stream string) bool {
	f, ok := w.(*os.File)
	if !ok || stream == "" {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && stream == fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}
