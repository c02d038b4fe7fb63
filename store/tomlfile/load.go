package tomlfile

import (
	"os"

	"vipd/store"
)

// Result is what one look at files found.
type Result struct {
	// Snapshot has the services and everything that is wrong with them and their defaults.
	Snapshot store.Snapshot
	// Main is the daemon's configuration file, for the check of its other sections. Nil where a folder was read, or
	// where the file can't be read or is no valid TOML; the snapshot's problems say which then.
	Main *Document
}

// Load reads once what a Source would follow. Path is a daemon's configuration file, a file with services, which is
// read in the same way, or a folder of such files.
func Load(path string) Result {
	main, place := path, ""
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		main, place = "", path
	}
	return newLoader(main, place).once()
}

// LoadText is Load of a file whose text is at hand. Name stands for it in problems, and paths in it are relative to where name is.
func LoadText(name string, text []byte) (Result, error) {
	info, err := os.Stat(os.DevNull) // any will do that is no file of a folder: the text is read once
	if err != nil {
		return Result{}, err
	}
	l := newLoader(name, "")
	l.given, l.givenInfo = text, info
	return l.once(), nil
}

func (l *loader) once() Result {
	l.main.keepDoc = true
	l.load(look{all: true})
	return Result{Snapshot: l.state, Main: l.main.doc}
}
