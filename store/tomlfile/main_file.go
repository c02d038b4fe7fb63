package tomlfile

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/statedir"
)

// mainFile holds what the loader knows about the daemon's configuration file.
type mainFile struct {
	*contents
	// info holds the file's attributes at the last check.
	info os.FileInfo
	// placeOrigin is the origin of [store].path.
	placeOrigin balancer.Origin
	// doc is the parsed document if keepDoc is set. It is nil if the text was not valid TOML.
	doc     *Document
	keepDoc bool
	// settings holds the file's content except services and address settings, from the last read
	// without a syntax error. It is nil before the first such read.
	settings *Document
	// mistakes lists the errors in settings. good holds the last settings without errors.
	mistakes []balancer.Problem
	good     *Document
	// trial is the pending change, or nil.
	trial *trial
}

// loadMain reads the main file if it has changed: its services, [store].path and [defaults].
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
		l.readSettings(doc)
		l.defineMain(fresh, doc)
	}
	l.main.contents = fresh
	l.unsettled = l.unsettled || fresh.unsettled
	l.merge.put(l.path, fresh)
}

// hasContent reports whether the file contained a definition or a setting when it was last read.
func (m *mainFile) hasContent() bool {
	return m.contents != nil && len(m.services)+len(m.vips) > 0 || m.settings != nil && len(m.settings.tree) > 0
}

// emptied returns the contents to use for a main file that has become empty. Its previous content
// stays in use, because the disk may be full, the power may have failed, or a program may be
// writing the file.
func (l *loader) emptied(old *contents, t *text, what look) *contents {
	if !what.forced && l.recent(t) {
		return old.unchanged(false)
	}
	return old.seen(t, l.round).broken(l.path, nil, []balancer.Problem{emptiedProblem(l.path)})
}

func emptiedProblem(path string) balancer.Problem {
	return balancer.Problem{
		Severity: balancer.SeverityError, Origin: balancer.Origin{File: path},
		Text: "is empty, so its previous content stays in use; if it is meant to be empty, run vipctl reload --allow-empty",
	}
}

// Emptied returns a problem if the main file is empty, but a Source has recorded in dir that it had
// content. A reload rejects such a file.
func Emptied(main *Document, dir *statedir.Dir) []balancer.Problem {
	if len(main.tree) > 0 || KeptSettings(dir, main.file) == nil {
		return nil
	}
	return []balancer.Problem{emptiedProblem(main.file)}
}

// readPlace reads [store].path, relative to the main file's directory. If the value is not a
// string, the place does not change, and the reader of [store] reports the error. If the path is
// missing and hidden is set, because an error may hide the path, the place does not change, and
// readPlace returns true.
func (l *loader) readPlace(doc *Document, hidden bool) (kept bool) {
	section, _ := doc.tree["store"].(map[string]any)
	path, ok := section["path"].(string)
	switch {
	case section["path"] == nil && hidden:
		return true
	case section["path"] != nil && !ok:
		return false
	case path == "":
		l.place, l.main.placeOrigin = "", balancer.Origin{}
		return false
	case !filepath.IsAbs(path):
		path = filepath.Join(filepath.Dir(l.path), path)
	}
	l.place, l.main.placeOrigin = filepath.Clean(path), doc.Where("store.path")
	return false
}

// staying returns a problem about a setting that is at least partly missing, but stays in use
// because an error in the file may hide it.
func staying(doc *Document, field, what string) balancer.Problem {
	return balancer.Problem{
		Severity: balancer.SeverityWarning, Origin: doc.Where(field), Field: field,
		Text: "might be hidden by an error in this file: " + what + " stay in use until the error is fixed",
	}
}

// readSettings reads the sections other than services and address settings.
func (l *loader) readSettings(doc *Document) {
	fresh := doc.settings()
	if l.main.settings != nil && l.main.settings.same(fresh) {
		return
	}
	l.main.settings, l.main.mistakes = fresh, nil
	if l.check != nil {
		l.main.mistakes = slices.DeleteFunc(l.check(fresh), func(p balancer.Problem) bool { return p.Severity != balancer.SeverityError })
	}
	if len(l.main.mistakes) == 0 {
		l.main.good = fresh
	}
}

func (l *loader) settings() store.Document {
	if l.main.settings == nil {
		return nil // an interface that holds a nil *Document is not nil
	}
	return l.main.settings
}

// defineMain decodes the tables and [defaults] of the main file doc into fresh. It also reads
// [store].path. Defaults keep their old values if they have an error, or if a part of them is
// missing and an error in the file may hide it. After the defaults have changed, all services are
// decoded again.
func (l *loader) defineMain(fresh *contents, doc *Document) {
	defaults, problems := l.readDefaults(doc)
	fresh.define(doc, defaults)
	wrong := len(l.main.mistakes) > 0 || slices.ContainsFunc(fresh.problems, isError) || slices.ContainsFunc(problems, isError)
	if former := l.place; l.readPlace(doc, wrong) && former != "" {
		problems = append(problems, staying(doc, "store.path", "the files at the previous path"))
	}
	if wrong && lacks(defaults, l.defaults) {
		defaults = l.defaults
		fresh.define(doc, defaults)
		problems = append(problems, staying(doc, "defaults", "the previous defaults"))
	}
	if !reflect.DeepEqual(defaults, l.defaults) {
		l.defaults = interner{}.table(defaults)
		l.round++
	}
	fresh.problems, fresh.round = append(problems, fresh.problems...), l.round
}

// readDefaults returns the [defaults] of doc and their problems. If the defaults have an error, it
// returns the old defaults.
func (l *loader) readDefaults(doc *Document) (map[string]any, []balancer.Problem) {
	raw, exists := doc.tree["defaults"]
	defaults, ok := raw.(map[string]any)
	if exists && !ok {
		return l.defaults, nil // the reader of the settings reports the error
	}
	defaults = balancer.ResolvePaths(defaults, doc.Folder())
	problems := balancer.CheckDefaults(defaults, doc.Under("defaults"))
	for i := range problems {
		problems[i].Field = "defaults." + problems[i].Field
	}
	if slices.ContainsFunc(problems, isError) {
		return l.defaults, problems
	}
	return defaults, problems
}

func isError(p balancer.Problem) bool { return p.Severity == balancer.SeverityError }
