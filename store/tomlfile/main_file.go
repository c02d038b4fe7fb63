package tomlfile

import (
	"os"
	"path/filepath"
	"reflect"

	"vipd/balancer"
	"vipd/store"
)

// mainFile is what the loader knows of the daemon's own file.
type mainFile struct {
	*contents
	// info is the file when it was last looked at.
	info os.FileInfo
	// placeOrigin is where [store].path is written.
	placeOrigin balancer.Origin
	// doc is the one that was parsed, where keepDoc asks for it; nil if the text was no TOML.
	doc     *Document
	keepDoc bool
	// settings are all in it that is not about services and addresses, as it was last read without errors in its syntax; nil before.
	settings *Document
}

// loadMain reads the main file, if it has changed: its services, the place of others, and the defaults.
func (l *loader) loadMain(what look) {
	if l.path == "" {
		return
	}
	l.follow.place(l.path)
	old := l.main.contents
	if info, err := os.Stat(l.path); err == nil {
		if l.main.info = info; !what.forced && old.current(identityOf(info)) {
			return
		}
	}
	fresh, doc := l.parse(l.path, old, what)
	if doc != nil {
		if l.main.keepDoc {
			l.main.doc = doc
		}
		l.readPlace(doc)
		l.readSettings(doc)
		problems := l.readDefaults(doc)
		fresh.define(doc, l.defaults)
		fresh.problems, fresh.round = append(problems, fresh.problems...), l.round
	}
	l.main.contents = fresh
	l.unsettled = l.unsettled || fresh.unsettled
	l.merge.put(l.path, fresh)
}

// says reports whether the file defined anything or had a setting when it was last read.
func (m *mainFile) says() bool {
	return m.contents != nil && !m.kept && len(m.services)+len(m.vips) > 0 || m.settings != nil && len(m.settings.tree) > 0
}

// emptied returns what an old main file becomes that says nothing any more: a disk was full, the power failed, or a program
// writes it just now. What it said goes on.
func (l *loader) emptied(old *contents, t *text, what look) *contents {
	if !what.forced && l.recent(t) {
		return old.unchanged(false)
	}
	return old.seen(t, l.round).broken(l.path, nil, []balancer.Problem{{
		Severity: balancer.SeverityError, Origin: balancer.Origin{File: l.path},
		Text: "is empty, so what it said before stays in use; if it is meant to be empty: vipctl reload --allow-empty",
	}})
}

// readPlace takes [store].path, relative to the main file's folder. One that is no text is reported by the reader of
// the section as a whole, and leaves the place as it is.
func (l *loader) readPlace(doc *Document) {
	section, _ := doc.tree["store"].(map[string]any)
	path, ok := section["path"].(string)
	switch {
	case section["path"] != nil && !ok:
		return
	case path == "":
		l.place, l.main.placeOrigin = "", balancer.Origin{}
		return
	case !filepath.IsAbs(path):
		path = filepath.Join(filepath.Dir(l.path), path)
	}
	l.place, l.main.placeOrigin = filepath.Clean(path), doc.Where("store.path")
}

// readSettings takes what the file says besides services and settings of addresses.
func (l *loader) readSettings(doc *Document) {
	if fresh := doc.settings(); l.main.settings == nil || !l.main.settings.same(fresh) {
		l.main.settings = fresh
	}
}

// settings are those of the main file, for the snapshot.
func (l *loader) settings() store.Document {
	if l.main.settings == nil {
		return nil // a nil *Document in an interface would not be nil
	}
	return l.main.settings
}

// readDefaults takes [defaults], unless there is an error in them. Other defaults make another round: all services
// are decoded again.
func (l *loader) readDefaults(doc *Document) []balancer.Problem {
	raw, there := doc.tree["defaults"]
	defaults, ok := raw.(map[string]any)
	if there && !ok {
		return nil // as whoever reads the settings says
	}
	defaults = balancer.ResolvePaths(defaults, doc.Folder())
	problems := balancer.CheckDefaults(defaults, doc.Under("defaults"))
	bad := false
	for i := range problems {
		problems[i].Field = "defaults." + problems[i].Field
		bad = bad || problems[i].Severity == balancer.SeverityError
	}
	if !bad && !reflect.DeepEqual(defaults, l.defaults) {
		l.defaults = interner{}.table(defaults)
		l.round++
	}
	return problems
}
