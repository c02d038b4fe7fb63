package tomlfile

import "github.com/fsnotify/fsnotify"

// Paths returns every path that the scanner found.
func (d *Document) Paths() map[string]bool {
	paths := map[string]bool{}
	for path := range d.all() {
		paths[path] = true
	}
	return paths
}

// SetOpen replaces what starts notifications.
func (s *Source) SetOpen(open func() (*fsnotify.Watcher, error)) { s.open = open }
