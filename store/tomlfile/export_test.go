package tomlfile

import (
	"time"

	"github.com/fsnotify/fsnotify"
)

// Paths returns all paths that the scanner finds.
func (d *Document) Paths() map[string]bool {
	paths := map[string]bool{}
	for path := range d.all() {
		paths[path] = true
	}
	return paths
}

// SetGrace sets how long a file that was changed in place must then be unchanged before definitions
// that it lacks are removed.
func (s *Source) SetGrace(grace time.Duration) { s.loader.grace = grace }

// SetPoll sets the interval at which the source checks all files.
func (s *Source) SetPoll(poll time.Duration) { s.poll = poll }

// SetOpen replaces the function that starts notifications about changed files.
func (s *Source) SetOpen(open func() (*fsnotify.Watcher, error)) { s.open = open }
