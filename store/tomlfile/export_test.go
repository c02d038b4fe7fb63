package tomlfile

import (
	"time"

	"github.com/fsnotify/fsnotify"
)

// Paths returns every path that the scanner found.
func (d *Document) Paths() map[string]bool {
	paths := map[string]bool{}
	for path := range d.all() {
		paths[path] = true
	}
	return paths
}

// SetGrace replaces the time for which a file that is being written must be unchanged.
func (s *Source) SetGrace(grace time.Duration) { s.loader.grace = grace }

// SetPoll replaces the interval of checks of all files.
func (s *Source) SetPoll(poll time.Duration) { s.poll = poll }

// SetOpen replaces the function that starts notifications.
func (s *Source) SetOpen(open func() (*fsnotify.Watcher, error)) { s.open = open }
