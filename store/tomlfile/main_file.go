package tomlfile

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"

	"vipd/balancer"
)

// mainFile is what the loader knows of the daemon's own file.
type mainFile struct {
	*contents
	// info is the file as it was read last, and err why it can't be read now.
	info os.FileInfo
	err  error
	// placeOrigin is where [store].path is written.
	placeOrigin balancer.Origin
	// doc is the last one that was parsed, where keepDoc asks for it; nil if the last text was no TOML.
	doc     *Document
	keepDoc bool
	// rest is all in it that is not about services, and edited, that it says something else than was told.
	rest   map[string]any
	edited bool
}

// loadMain reads the main file, if it has changed: its services, the place of others, and the defaults.
func (l *loader) loadMain(forced bool) {
	if l.path == "" {
		return
	}
	l.follow.place(l.path)
	old := l.main.contents
	if info, err := os.Stat(l.path); err == nil && !forced && old.current(identityOf(info)) {
		return
	}
	t, err := l.readText(l.path)
	l.main.err = err
	if err != nil {
		l.replaceMain(old.broken(l.path, err, []balancer.Problem{unreadable(l.path, err)}))
		return
	}
	l.main.info = t.info
	if kept := old.reread(&t, l.round, forced); kept != nil {
		l.replaceMain(kept)
		return
	}
	doc, problems := Parse(l.path, t.bytes)
	if l.main.keepDoc {
		l.main.doc = doc
	}
	if doc == nil {
		l.replaceMain(old.seen(&t, l.round).broken(l.path, nil, problems))
		return
	}
	l.readPlace(doc)
	l.readRest(doc)
	problems = l.readDefaults(doc)
	fresh := (*contents)(nil).seen(&t, l.round)
	fresh.path = l.path
	fresh.services, fresh.problems = decodeServices(doc, l.defaults, old)
	fresh.problems = append(problems, fresh.problems...)
	l.replaceMain(fresh)
}

func (l *loader) replaceMain(fresh *contents) {
	l.main.contents = fresh
	l.unsettled = l.unsettled || fresh.unsettled
	l.merge.put(l.pass, l.path, fresh)
}

// readPlace takes [store].path, relative to the main file's folder. One that is no text is reported by whoever reads
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

// readRest notes what the file says besides services: that is for whoever the snapshots are for.
func (l *loader) readRest(doc *Document) {
	rest := maps.Clone(doc.tree)
	delete(rest, "services")
	l.main.edited = l.main.edited || !reflect.DeepEqual(rest, l.main.rest)
	l.main.rest = rest
}

// readDefaults takes [defaults], unless there is an error in them. Other defaults make another round: all services
// are decoded again.
func (l *loader) readDefaults(doc *Document) []balancer.Problem {
	raw, there := doc.tree["defaults"]
	defaults, ok := raw.(map[string]any)
	if there && !ok {
		return []balancer.Problem{{
			Severity: balancer.SeverityError, Origin: doc.Where("defaults"), Field: "defaults", Text: "needs a table: [defaults]",
		}}
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
