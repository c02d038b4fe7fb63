package tomlfile

import (
	"bytes"
	"errors"
	"hash/maphash"
	"io/fs"
	"time"

	"vipd/balancer"
)

const (
	// settled is how old the last change of a file must be for its times to tell it from a later one: file systems
	// stamp files by a clock that ticks every few milliseconds, some every two seconds.
	settled = 2 * time.Second
	// emptyGrace is how long a file that is suddenly empty is taken for one that is just being written.
	emptyGrace = time.Second
)

// identity tells a file from its former self without reading it.
type identity struct {
	size, modified, changed int64
	device, inode           uint64
	mode                    fs.FileMode
}

// contents is what one file holds. It never changes: a file that has changed gets new contents.
type contents struct {
	path string
	// id and read say which state of the file this is from, and when reading it began.
	id   identity
	read time.Time
	// sum is the hash of the text, and round the number of the defaults that services were decoded with.
	sum   uint64
	round int
	// services are the definitions in the file; in their last good state where the file as a whole can't be read.
	services map[balancer.Name]definition
	problems []balancer.Problem
	// err is why the file can't be opened or read.
	err error
	// unsettled: the file is probably just being written, and this is from before.
	unsettled bool
}

// definition is one [services.NAME] of a file.
type definition struct {
	// service is nil where the definition has an error.
	service *balancer.Service
	origin  balancer.Origin
}

// current reports whether c is what the file with this identity holds, as far as one can know without reading it.
func (c *contents) current(id identity) bool {
	return c != nil && c.err == nil && !c.unsettled && c.id == id &&
		c.read.UnixNano()-max(id.modified, id.changed) > int64(settled)
}

// seen returns contents like c (nil: empty) that are from the file as it is in t.
func (c *contents) seen(t *text, round int) *contents {
	var out contents
	if c != nil {
		out = *c
	}
	out.id, out.read = identityOf(t.info), t.began
	out.sum, out.round, out.err, out.unsettled = t.sum, round, nil, false
	return &out
}

// reread returns what c becomes by reading t, where that takes no parsing; nil: it does.
func (c *contents) reread(t *text, round int, forced bool) *contents {
	switch {
	case c == nil:
		return nil
	case c.err == nil && c.sum == t.sum && c.round == round:
		return c.seen(t, round)
	case !forced && len(c.services) > 0 && t.blank() && time.Since(t.info.ModTime()) < emptyGrace:
		kept := *c
		kept.unsettled = true
		return &kept
	}
	return nil
}

// broken returns contents with the services of c (nil: none), which stay in use, and what is wrong with the file.
func (c *contents) broken(path string, err error, problems []balancer.Problem) *contents {
	var out contents
	if c != nil {
		out = *c
	}
	out.path, out.err, out.problems = path, err, problems
	return &out
}

// text is a file as it was read.
type text struct {
	info  fs.FileInfo
	began time.Time
	bytes []byte
	sum   uint64
}

func (l *loader) readText(path string) (t text, err error) {
	t.began = time.Now()
	if t.bytes, t.info, err = readFile(path); err == nil {
		t.sum = maphash.Bytes(l.seed, t.bytes)
	}
	return t, err
}

// blank reports whether the text holds nothing at all.
func (t *text) blank() bool { return len(bytes.TrimSpace(t.bytes)) == 0 }

// reason is err without what the problem says anyway: the path.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	return err.Error()
}

func unreadable(path string, err error) balancer.Problem {
	return balancer.Problem{
		Severity: balancer.SeverityError, Origin: balancer.Origin{File: path}, Text: "can't be read: " + reason(err),
	}
}
