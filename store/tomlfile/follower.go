package tomlfile

import (
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// follower hears of changes in folders. It is told the places that are about to be read, works out which folders that
// takes, and says of each notification what there is to look at.
//
// Folders are watched, never files: a file that is replaced by renaming takes its watch along. The zero follower follows
// nothing.
type follower struct {
	log *slog.Logger
	// watcher is nil once notifications are unavailable, and so are events and errors, from which nothing comes then.
	watcher *fsnotify.Watcher
	events  chan fsnotify.Event
	errors  chan error
	// deaf: some folder can't be watched, so that only the poll notices changes there.
	deaf bool
	// folders are those that are watched, by their real path.
	folders map[string]*watched
	// files is the real path of the folder in which all names count.
	files string
	round int
}

// watched is one folder.
type watched struct {
	// names are those that matter, with the round in which they last did.
	names map[string]int
	round int
}

// newFollower starts to listen. Where the system has no notifications to give, it follows nothing and is deaf.
func newFollower(log *slog.Logger, open func() (*fsnotify.Watcher, error)) *follower {
	f := &follower{log: log, folders: map[string]*watched{}}
	watcher, err := open()
	if err != nil {
		f.turnDeaf("asking for notifications of changed files", err)
		return f
	}
	f.watcher, f.events, f.errors = watcher, watcher.Events, watcher.Errors
	return f
}

func (f *follower) close() {
	if f.watcher != nil {
		_ = f.watcher.Close() // nothing is left to be done about it
	}
}

func (f *follower) turnDeaf(doing string, err error) {
	if !f.deaf {
		f.log.Warn(doing+"; looking every second instead", "err", err)
	}
	f.deaf = true
}

// lost gives up on notifications after the watcher has ended by itself.
func (f *follower) lost() {
	f.turnDeaf("following files", errors.New("notifications have ended"))
	f.close()
	f.watcher, f.events, f.errors = nil, nil, nil
}

// begin starts a round in which all places are named anew.
func (f *follower) begin() {
	f.round++
	f.files = ""
}

// place follows the file or folder at path, and the way to it.
func (f *follower) place(path string) {
	if f.watcher == nil {
		return
	}
	spots, _ := chain(path)
	for _, s := range spots {
		f.watch(s.folder, s.name)
	}
}

// list follows all that is in the folder at path.
func (f *follower) list(path string) {
	if f.watcher == nil {
		return
	}
	if _, real := chain(path); real != "" {
		f.watch(real, "")
		f.files = real
	}
}

// end ends a round: what was not named in it is no longer followed.
func (f *follower) end() {
	if f.watcher == nil {
		return
	}
	for path, w := range f.folders {
		if w.round != f.round {
			_ = f.watcher.Remove(path) // it may be gone by itself
			delete(f.folders, path)
		}
		for name, round := range w.names {
			if round != f.round {
				delete(w.names, name)
			}
		}
	}
}

// watch hears of name in folder; "" is the folder as such.
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

// add asks for notifications of folder, also where it is watched already: another folder may have taken its name.
func (f *follower) add(folder string, w *watched) (*watched, bool) {
	err := f.watcher.Add(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false // gone since; its parent tells when it is back
	}
	if err != nil {
		f.turnDeaf("watching the folder "+folder, err)
		return nil, false
	}
	if w == nil {
		w = &watched{names: map[string]int{}}
		f.folders[folder] = w
	}
	return w, true
}

// note adds to what what e asks to look at, and reports whether that is anything.
func (f *follower) note(what *look, e fsnotify.Event) bool {
	if _, self := f.folders[e.Name]; self && e.Has(fsnotify.Remove|fsnotify.Rename) {
		_ = f.watcher.Remove(e.Name) // whatever is there next is another folder
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
	case matters: // the main file, too, which may lie among the files
		what.all = true
	case folder == f.files && counts(name):
		what.files[name] = true
	default:
		return false
	}
	return true
}
