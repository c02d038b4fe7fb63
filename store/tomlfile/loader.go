package tomlfile

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"vipd/balancer"
	"vipd/store"
)

// loader reads files into a snapshot, and remembers the content of each file. Only one goroutine
// may use it.
type loader struct {
	// follow receives each path before the path is read, so it misses no change after the read.
	follow *follower
	seed   maphash.Seed

	// path is the path of the main file, or "" if only the file or directory in place is read.
	path string
	main mainFile
	// check is [Options.Check].
	check func(store.Document) []balancer.Problem
	// readText reads a file. It is the function readText, unless a pending change replaces the main
	// file's text.
	readText func(path string) (text, error)
	// place is the file or directory of [store].path, or "". placeErr is the reason why it can't be
	// read.
	place    string
	placeErr error
	// defaults holds the last good [defaults]. round is incremented when they change.
	defaults map[string]any
	round    int
	// unsettled reports whether a file was being written at any time since the last full check.
	unsettled bool
	recency

	merge *merge
	state store.Snapshot
}

// look selects the files to check.
type look struct {
	// all selects the main file, the place, and all files in the place. Otherwise only the names in
	// files are checked.
	all bool
	// forced means that files are read even if they seem unchanged.
	forced bool
	Reload
	// files is a set of file names in the place's directory.
	files map[string]bool
}

func newLoader(main, place string) *loader {
	return &loader{follow: &follower{}, path: main, place: place, seed: maphash.MakeSeed(), merge: newMerge(main), readText: readText, recency: recency{grace: defaultGrace, ahead: map[string]sighting{}}}
}

// begin starts from the last good state of an earlier process. The first load removes definitions
// that have disappeared since then, unless an error may hide them.
func (l *loader) begin(kept *goodState) {
	l.defaults = kept.defaults
	for path, c := range kept.files {
		l.merge.put(path, c)
	}
	l.main.contents = cmp.Or(kept.files[l.path], &contents{path: l.path, kept: true})
	if kept.settings != nil && samePath(kept.settings.file, l.path) {
		l.main.settings, l.main.good = kept.settings, kept.settings
		l.readPlace(kept.settings, false)
	}
	l.merge.settle(false)
}

// load checks the files, and reports whether the snapshot has changed.
func (l *loader) load(what look) bool {
	if what.all {
		l.unsettled = false
		l.follow.begin()
		l.loadMain(what)
		l.loadPlace(what)
		l.follow.end()
	} else {
		l.loadFiles(what)
	}
	l.merge.settle(l.hider() != nil && !what.Prune)
	return l.renew()
}

// renew replaces the snapshot with the merged state, and reports whether it has changed.
func (l *loader) renew() bool {
	next := store.Snapshot{Services: l.merge.services.values, VIPs: l.merge.vips.values, Revision: l.state.Revision}
	next.Err = cmp.Or(l.fileErr(l.path), l.placeErr, l.fileErr(l.place))
	next.Connected = next.Err == nil
	next.Problems = l.problems()
	next.Pending = l.pending()
	next.Settings = l.settings()
	next.Retained, next.Vanished = l.retained()
	if l.state.Revision > 0 && next.Same(l.state) {
		return false
	}
	next.Revision++
	l.state = next
	return true
}

// problems returns all problems, sorted by file and line. The problems of the main file are first.
func (l *loader) problems() []balancer.Problem {
	problems := l.merge.problems()
	if l.placeErr != nil {
		problems = append(problems, l.placeProblem())
	}
	problems = l.blame(append(problems, l.overtakenProblem()...))
	slices.SortStableFunc(problems, l.compareProblems)
	return problems
}

// compareProblems orders problems by file, line and service. The main file is first.
func (l *loader) compareProblems(a, b balancer.Problem) int {
	return cmp.Or(l.merge.compare(a.Origin.File, b.Origin.File), cmp.Compare(a.Origin.Line, b.Origin.Line), a.Service.Compare(b.Service))
}

// fileErr returns the reason why the main file, or a place that is a file, can't be read. For a
// file in a directory, only a problem reports the reason.
func (l *loader) fileErr(path string) error {
	if c := l.merge.files[path]; c != nil {
		return c.err
	}
	return nil
}

func (l *loader) placeProblem() balancer.Problem {
	p := unreadable(l.place, l.placeErr)
	if at := l.main.placeOrigin; at.Line > 0 {
		p.Origin, p.Field = at, "store.path"
		p.Text = fmt.Sprintf("%s can't be read: %s", l.place, reason(l.placeErr))
	}
	return p
}

// loadPlace lists the files of the place. It reads the files that have changed, and drops the
// contents of files that no longer exist.
func (l *loader) loadPlace(what look) {
	l.placeErr = nil
	found := map[string]os.FileInfo{}
	if l.place != "" {
		l.follow.place(l.place)
		if found, l.placeErr = l.list(); l.placeErr != nil {
			return // the previous content stays in use
		}
	}
	for path := range l.merge.files {
		if _, exists := found[path]; !exists && path != l.path {
			l.merge.put(path, nil)
		}
	}
	l.readAll(found, what)
}

// loadFiles checks only the files of the directory whose names are in what.
func (l *loader) loadFiles(what look) {
	found := map[string]os.FileInfo{}
	for name := range what.files {
		path := filepath.Join(l.place, name)
		info, err := l.stat(path)
		switch {
		case err == nil && info == nil || os.IsNotExist(err):
			l.merge.put(path, nil)
		default:
			found[path] = info
		}
	}
	l.readAll(found, what)
}

// list returns the files of the place by path. The value is nil for an existing file that can't be
// examined.
func (l *loader) list() (map[string]os.FileInfo, error) {
	info, err := os.Stat(l.place)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return map[string]os.FileInfo{l.place: info}, nil
	}
	l.follow.list(l.place)
	entries, err := os.ReadDir(l.place)
	if err != nil {
		return nil, err
	}
	found := map[string]os.FileInfo{}
	for _, entry := range entries {
		if !counts(entry.Name()) {
			continue
		}
		path := filepath.Join(l.place, entry.Name())
		info, err := l.stat(path)
		if err == nil && info == nil || os.IsNotExist(err) {
			continue
		}
		found[path] = info
	}
	return found, nil
}

// counts reports whether a file with this name is read from the directory. Editors' temporary files
// are not read.
func counts(name string) bool {
	return strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".")
}

// stat examines a file of the directory. It returns nil for directories, and for the main file,
// which may be in the same directory. A dangling link counts as an existing file that can't be
// examined.
func (l *loader) stat(path string) (os.FileInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		l.follow.place(path)
		if info, err = os.Stat(path); err != nil {
			return nil, fmt.Errorf("following the link %s: %s", path, reason(err))
		}
	}
	if info.IsDir() || l.main.info != nil && os.SameFile(info, l.main.info) {
		return nil, nil
	}
	return info, nil
}

// readers is the maximum number of files that are read concurrently. Parsing uses a CPU, and
// several times the file's size in memory.
const readers = 4

// readAll reads the files that have changed, and merges them.
func (l *loader) readAll(found map[string]os.FileInfo, what look) {
	var paths []string
	for path, info := range found {
		old := l.merge.files[path]
		if what.forced || info == nil || !old.current(identityOf(info)) || old.round != l.round {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	fresh := make([]*contents, len(paths))
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(readers, runtime.GOMAXPROCS(0), len(paths)) {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(paths)); i = next.Add(1) - 1 {
				fresh[i] = l.read(paths[i], l.merge.files[paths[i]], what)
			}
		})
	}
	running.Wait()
	for i, path := range paths {
		l.unsettled = l.unsettled || fresh[i].unsettled
		l.merge.put(path, fresh[i])
	}
}

// read reads a file of the place. Several reads run concurrently, so read must not modify any field
// of the loader except ahead.
func (l *loader) read(path string, old *contents, what look) *contents {
	fresh, doc := l.parse(path, old, what)
	if doc != nil {
		fresh.define(doc, l.defaults)
		fresh.problems = append(fresh.problems, strangers(doc, l.path)...)
	}
	return fresh
}

// parse reads the file at path. The caller must decode the tables in doc into fresh. doc is nil if
// fresh already has old's tables, because the file has not changed, can't be read, or is being
// written.
func (l *loader) parse(path string, old *contents, what look) (fresh *contents, doc *Document) {
	t, err := l.readText(path)
	if err != nil {
		return old.broken(path, err, []balancer.Problem{unreadable(path, err)}), nil
	}
	t.sum = maphash.Bytes(l.seed, t.bytes)
	if kept := l.reread(old, &t, what); kept != nil {
		return kept, nil
	}
	doc, problems := Parse(path, t.bytes)
	switch {
	case doc == nil:
		return old.seen(&t, l.round).broken(path, nil, problems), nil
	case path == l.path && len(doc.tree) == 0 && !what.AllowEmpty && l.main.hasContent():
		return l.emptied(old, &t, what), nil
	case l.isCut(old, doc, &t, what):
		return old.unchanged(false), nil
	}
	fresh = (*contents)(nil).seen(&t, l.round)
	fresh.path = path
	return fresh, doc
}

// define decodes the tables of doc into c.
func (c *contents) define(doc *Document, defaults map[string]any) {
	lines := doc.fieldLines()
	var services, vips []balancer.Problem
	c.services, services = decodeServices(doc, defaults, lines)
	c.vips, vips = decodeVIPs(doc, lines)
	c.problems = slices.Concat(Sections(doc), services, vips)
}

// Result is the result of [Load] or [LoadText].
type Result struct {
	// Snapshot holds the services, and all problems with services and their defaults.
	Snapshot store.Snapshot
	// Main is the daemon's configuration file, for callers that check its other sections. It is nil
	// if a directory was read, or if the file can't be read or is not valid TOML. In the latter
	// cases, the snapshot's problems contain the reason.
	Main *Document
}

// Load reads once the files that a Source would follow. The parameter path is a daemon's
// configuration file, a directory of files with services, or such a file, which is read like a
// configuration file.
func Load(path string) Result {
	main, place := path, ""
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		main, place = "", path
	}
	return newLoader(main, place).once()
}

// LoadText works like Load for a main file with the given text. Problems refer to the file as name,
// and paths in the text are relative to the directory of name.
func LoadText(name string, bytes []byte) Result {
	l := newLoader(name, "")
	l.readText = func(path string) (text, error) {
		if path != name {
			return readText(path)
		}
		return text{path: path, bytes: bytes, writers: noWriters}, nil
	}
	return l.once()
}

func (l *loader) once() Result {
	l.main.keepDoc = true
	l.load(look{all: true})
	return Result{Snapshot: l.state, Main: l.main.doc}
}
