package tomlfile

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
)

const (
	// settled is how old a file's last change must be for the file's times to differ after a later
	// change. File system clocks tick every few milliseconds, and some only every two seconds.
	settled = 2 * time.Second
	// defaultGrace is how long a file must be unchanged before its text is accepted in doubtful
	// cases. A case is doubtful if a process has the file open for writing, or if tables, keys,
	// endpoints or ports have disappeared from a file that was not replaced. An empty file always
	// waits that long, because many programs truncate a file before they write it.
	defaultGrace = 2 * time.Second
)

// identity holds attributes that distinguish versions of a file without reading it.
type identity struct {
	size, modified, changed int64
	device, inode           uint64
	mode                    fs.FileMode
}

// sameFile reports whether other identifies the same file, regardless of its content.
func (id identity) sameFile(other identity) bool {
	return id.device == other.device && id.inode == other.inode
}

// contents is the content of one version of a file. It is never modified.
type contents struct {
	path string
	// id identifies the version of the file. read is when the file was opened for reading.
	id   identity
	read time.Time
	// sum is the hash of the text. round identifies the defaults that the services were decoded
	// with (see loader.round).
	sum   uint64
	round int
	// services and vips hold the definitions in the file. If the file as a whole can't be read,
	// they hold the last good state.
	services map[balancer.Name]definition[balancer.Service]
	vips     map[netip.Addr]definition[balancer.VIP]
	problems []balancer.Problem
	// err is the reason why the file can't be opened or read.
	err error
	// unsettled is set if the file is probably being written. The contents are then those of its
	// previous version.
	unsettled bool
	// writing reports whether the last problem is that the file is being written.
	writing bool
	// stale reports whether services and vips are from a previous version because the file has an
	// error.
	stale bool
	// kept reports whether this content is from an earlier process, and the file has not been read
	// yet.
	kept bool
}

// definition is a table of a file: [services.NAME] or [vips."ADDRESS"].
type definition[V any] struct {
	// value is nil if the table has an error.
	value  *V
	origin balancer.Origin
	// keys is the number of keys in the table, at any depth.
	keys int
}

// current reports whether c is still the file's content, judging by the file's attributes in id.
func (c *contents) current(id identity) bool {
	return c != nil && c.err == nil && !c.unsettled && c.id == id &&
		c.read.UnixNano()-max(id.modified, id.changed) > int64(settled)
}

// seen returns contents for the version of the file in t, with the definitions in c if c is not
// nil.
func (c *contents) seen(t *text, round int) *contents {
	var out contents
	if c != nil {
		out = *c
	}
	out.id, out.read = t.id, t.began
	out.sum = t.sum
	out.round = round
	out.err = nil
	out.unsettled = false
	out.kept = false
	if out.writing {
		out.problems, out.writing = out.problems[:len(out.problems)-1], false
	}
	return &out
}

// reread returns the new contents for t if they can be derived from c without parsing, or nil.
func (l *loader) reread(c *contents, t *text, what look) *contents {
	switch {
	case c == nil || c.kept:
		return nil
	case c.err == nil && c.sum == t.sum && c.round == l.round && !(what.AllowEmpty && c.path == l.path):
		return c.seen(t, l.round)
	case t.writers == someWriters && l.recent(t), !what.forced && t.blank() && l.recent(t):
		return c.unchanged(what.forced)
	}
	return nil
}

// recency determines whether files have changed recently. It is safe for concurrent use, because
// several files are read concurrently.
type recency struct {
	// grace is defaultGrace except in tests.
	grace time.Duration
	mu    sync.Mutex
	// ahead holds the files whose modification time is in the future by more than the grace time.
	ahead map[string]sighting
}

// sighting records when a version of a file was first seen.
type sighting struct {
	id identity
	at time.Time
}

// recent reports whether the file has changed within the grace time. If the file's modification
// time is in the future, as on a server whose clock is ahead, recent uses the time when this
// version was first seen instead.
func (r *recency) recent(t *text) bool {
	age := time.Since(time.Unix(0, t.id.modified))
	if age > -r.grace {
		return age < r.grace
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ahead[t.path].id != t.id {
		r.ahead[t.path] = sighting{t.id, t.began}
	}
	return time.Since(r.ahead[t.path].at) < r.grace
}

// unchanged returns a copy of c for a file that is being written and must be checked again soon. If
// report is true, it adds a problem that the file is being written.
func (c *contents) unchanged(report bool) *contents {
	kept := *c
	kept.unsettled, kept.err = true, nil
	if report && !c.writing {
		kept.writing = true
		p := balancer.Problem{Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: c.path}}
		p.Text = "is being written: vipd will read it when the writer closes it, or has written nothing for 2s"
		kept.problems = append(slices.Clip(c.problems), p)
	}
	return &kept
}

// isCut reports whether doc, which was parsed from t, may lack tables, keys, endpoints or ports
// that are in c because the file is still being written. A script that appends line by line closes
// the file after each line, and does not replace the file.
func (l *loader) isCut(c *contents, doc *Document, t *text, what look) bool {
	if c == nil || c.kept || what.forced || !l.recent(t) || t.writers == noWriters && !c.id.sameFile(t.id) {
		return false
	}
	if c.path == l.path && l.main.settings != nil && lacks(doc.tree, l.main.settings.tree) {
		return true
	}
	services, _ := doc.tree["services"].(map[string]any)
	for name, d := range c.services {
		table, _ := services[string(name)].(map[string]any)
		if table == nil || keysIn(table) < d.keys {
			return true
		}
		if d.value != nil && (elements(table["endpoints"]) < len(d.value.Endpoints) || elements(table["ports"]) < len(d.value.Ports)) {
			return true
		}
	}
	vips, _ := doc.tree["vips"].(map[string]any)
	for addr, d := range c.vips {
		if table, still := vips[addr.String()].(map[string]any); !still || keysIn(table) < d.keys {
			return true
		}
	}
	return false
}

// lacks reports whether a key of former is missing from tree, at any depth.
func lacks(tree, former map[string]any) bool {
	for key, value := range former {
		now, exists := tree[key]
		inner, _ := now.(map[string]any)
		if table, ok := value.(map[string]any); !exists || ok && lacks(inner, table) {
			return true
		}
	}
	return false
}

// keysIn returns the number of keys in value, at any depth.
func keysIn(value any) (n int) {
	switch typed := value.(type) {
	case map[string]any:
		n = len(typed)
		for _, inner := range typed {
			n += keysIn(inner)
		}
	case []map[string]any:
		for _, inner := range typed {
			n += keysIn(inner)
		}
	case []any:
		for _, inner := range typed {
			n += keysIn(inner)
		}
	}
	return n
}

// elements returns the length of a list of tables or values, or 0 for any other value.
func elements(value any) int {
	switch list := value.(type) {
	case []map[string]any:
		return len(list)
	case []any:
		return len(list)
	}
	return 0
}

// broken returns contents with c's definitions, which stay in use, and with the file's problems. If
// c is nil, the contents have no services.
func (c *contents) broken(path string, err error, problems []balancer.Problem) *contents {
	var out contents
	if c != nil {
		out = *c
	}
	out.path = path
	out.err = err
	out.problems = problems
	out.writing = false
	out.stale = true
	return &out
}

// reason returns err's text without the path, because the problem already contains it.
func reason(err error) string {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	if errors.Is(err, fs.ErrPermission) {
		return err.Error() + " for this user: change the permissions (chmod), or use sudo"
	}
	return err.Error()
}

func unreadable(path string, err error) balancer.Problem {
	return balancer.Problem{
		Severity: balancer.SeverityError, Origin: balancer.Origin{File: path}, Text: "can't be read: " + reason(err),
	}
}
