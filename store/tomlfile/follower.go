package tomlfile

import (
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// follower receives notifications about changes. The loader passes it the paths that are about to
// be read. It then finds the directories to watch, and maps each notification to the files that
// must be checked.
//
// It watches directories, never files, because the watch of a file that is replaced by renaming
// stays with the old file. The zero follower watches nothing.
type follower struct {
	log *slog.Logger
	// watcher is nil if notifications are unavailable. In this case, events and errors are also
	// nil, so they never deliver a value.
	watcher *fsnotify.Watcher
	events  chan fsnotify.Event
	errors  chan error
	// pollOnly reports whether a directory can't be watched. Only polling finds changes in such a
	// directory.
	pollOnly bool
	// folders maps the real paths of watched directories to their state.
	folders map[string]*watched
	// files is the real path of the directory in which all files are watched, or "" if there is
	// none.
	files string
	round int
}

// watched is a watched directory.
type watched struct {
	// names maps each watched name to the number of the last round in which it was requested (see
	// begin).
	names map[string]int
	round int
}

// newFollower starts a follower. If the system does not support notifications, the follower watches
// nothing, and deaf is set.
func newFollower(log *slog.Logger, open func() (*fsnotify.Watcher, error)) *follower {
	f := &follower{log: log, folders: map[string]*watched{}}
	watcher, err := open()
	if err != nil {
		f.turnDeaf("can't request notifications of changed files", err)
		return f
	}
	f.watcher = watcher
	f.events = watcher.Events
	f.errors = watcher.Errors
	return f
}

func (f *follower) close() {
	if f.watcher != nil {
		_ = f.watcher.Close() // an error needs no reaction
	}
}

func (f *follower) turnDeaf(doing string, err error) {
	if !f.pollOnly {
		f.log.Warn(doing+"; checking files every second instead", "err", err)
	}
	f.pollOnly = true
}

// lost stops using notifications after the watcher has ended unexpectedly.
func (f *follower) lost() {
	f.turnDeaf("files can't be followed", errors.New("notifications have ended"))
	f.close()
	f.watcher = nil
	f.events = nil
	f.errors = nil
}

// begin starts a round, in which the caller must request all paths again.
func (f *follower) begin() {
	f.round++
	f.files = ""
}

// place watches the file or directory at path, and the links on the way to it.
func (f *follower) place(path string) {
	if f.watcher == nil {
		return
	}
	spots, _ := chain(path)
	for _, s := range spots {
		f.watch(s.folder, s.name)
	}
}

// list watches all files in the directory at path.
func (f *follower) list(path string) {
	if f.watcher == nil {
		return
	}
	if _, real := chain(path); real != "" {
		f.watch(real, "")
		f.files = real
	}
}

// end ends a round. Paths that were not requested in this round are no longer watched.
func (f *follower) end() {
	if f.watcher == nil {
		return
	}
	for path, w := range f.folders {
		if w.round != f.round {
			_ = f.watcher.Remove(path) // the directory may have been removed
			delete(f.folders, path)
		}
		for name, round := range w.names {
			if round != f.round {
				delete(w.names, name)
			}
		}
	}
}

// watch watches name in folder. If name is "", it watches the directory itself.
func (f *follower) watch(folder, name string) {
	w := f.folders[folder]
	if w == nil || w.round != f.round {
		var ok bool
		if w, ok = f.add(folder, w); !ok {
			return
		}
	}
	w.round = f.round
	w.names[name] = f.round
}

// add requests notifications about a directory, even if it is already watched, because another
// directory may have its name now.
func (f *follower) add(folder string, w *watched) (*watched, bool) {
	err := f.watcher.Add(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false // the folder was removed, and its parent reports when it appears again
	}
	if err != nil {
		f.turnDeaf("can't watch the folder "+folder, err)
		return nil, false
	}
	if w == nil {
		w = &watched{names: map[string]int{}}
		f.folders[folder] = w
	}
	return w, true
}

// note adds the files that the event concerns to the selection in what. It reports whether the
// event concerns any file.
func (f *follower) note(what *look, e fsnotify.Event) bool {
	if _, self := f.folders[e.Name]; self && e.Has(fsnotify.Remove|fsnotify.Rename) {
		_ = f.watcher.Remove(e.Name) // a new directory of that name needs another watch
		delete(f.folders, e.Name)
		what.all = true
		return true
	}
	folder, name := filepath.Dir(e.Name), filepath.Base(e.Name)
	w := f.folders[folder]
	if w == nil {
		return false
	}
	switch _, matters := w.names[name]; {
	case matters: // includes the main file, because it may be in the same directory
		what.all = true
	case folder == f.files && counts(name):
		what.files[name] = true
	default:
		return false
	}
	return true
}
