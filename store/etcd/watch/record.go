package watch

import (
	"bytes"
	"cmp"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store/etcd/schema"
)

type rawKey string

// Compare orders keys as etcd does.
func (k rawKey) Compare(other rawKey) int { return cmp.Compare(k, other) }

// value is the value of a key at one revision.
type value struct {
	text                     []byte
	created, modified, lease int64
}

// record is a key with its current value and its last good value. It is immutable.
type record struct {
	schema.Subject
	key string
	// now is the current value. If the value is too long, its text is nil.
	now value
	// last is the last good value. decoded is its decoded form, or nil if there was no good value.
	last    value
	decoded any
	// problems lists the problems of the current value.
	problems []balancer.Problem
}

// current reports whether the current value is good.
func (r *record) current() bool { return r.good() && r.last.modified == r.now.modified }

// good reports whether the record has a good value.
func (r *record) good() bool { return r.decoded != nil }

type reader struct {
	keys     schema.Keys
	defaults map[string]any
}

// record decodes a key. old is its previous record, or nil.
func (r *reader) record(kv *mvccpb.KeyValue, old *record) *record {
	v := value{kv.Value, kv.CreateRevision, kv.ModRevision, kv.Lease}
	if old != nil && old.now.same(v) {
		return old
	}
	return r.make(string(kv.Key), v, old)
}

func (v value) same(w value) bool {
	return v.created == w.created && v.modified == w.modified && v.lease == w.lease && v.text != nil && bytes.Equal(v.text, w.text)
}

// make decodes the value v of a key. If v has an error, the record keeps the last good value of
// old, which may be nil.
func (r *reader) make(key string, v value, old *record) *record {
	next := &record{key: key, now: v}
	origin := balancer.Origin{Key: key, Revision: v.modified, Created: v.created}
	subject, err := r.keys.Parse(key)
	next.Subject = subject
	if err != nil {
		if len(key) > maxProblemText || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
			origin.Key = schema.Quote(key)
		}
		next.problems = schema.Problem(subject.Of, origin, err.Error())
		next.now.text = nil
		return next
	}
	next.decoded, next.problems = schema.DecodeValue(subject, v.text, origin, r.defaults)
	next.problems = bounded(next.problems)
	if len(v.text) > subject.Longest() {
		next.now.text = nil
	}
	switch {
	case next.good():
		next.last = next.now
		next.keep(old)
	case old != nil:
		next.last, next.decoded = old.last, old.decoded
	}
	if next.Kind == schema.VIPKind {
		next.Of, _ = next.decoded.(balancer.Name) // the key of an address does not contain its holder
	}
	return next
}

// These limits apply because problems are shown in every status and metric, and may contain foreign
// text.
const (
	maxProblemText = 500
	maxOfKey       = 100
)

// bounded returns a key's first problems, with shortened texts.
func bounded(all []balancer.Problem) []balancer.Problem {
	all = slices.Clone(all[:min(len(all), maxOfKey)])
	for i := range all {
		for _, text := range []*string{&all[i].Field, &all[i].Text} {
			if len(*text) > maxProblemText {
				*text = strings.ToValidUTF8((*text)[:maxProblemText], "") + "..."
			}
		}
	}
	return all
}

// If the two decoded values are equal, keep makes r share old's.
func (r *record) keep(old *record) {
	if old != nil && reflect.DeepEqual(r.decoded, old.decoded) {
		r.decoded = old.decoded
	}
}

// again decodes a record again after the defaults have changed.
func (r *reader) again(old *record) *record {
	if old.now.text == nil {
		return old
	}
	next := r.make(old.key, old.now, nil)
	if !next.good() && old.good() {
		good := r.make(old.key, old.last, nil)
		next.last, next.decoded = good.last, good.decoded
		if !good.good() {
			next.last, next.decoded = old.last, old.decoded
		}
	}
	next.keep(old)
	return next
}

// records decodes many keys on all processors, because decoding dominates the cost of the first
// state.
func (r *reader) records(kvs []*mvccpb.KeyValue, old func(string) *record) []*record {
	out := make([]*record, len(kvs))
	workers := min(runtime.GOMAXPROCS(0), 1+len(kvs)/100)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := w; i < len(kvs); i += workers {
				out[i] = r.record(kvs[i], old(string(kvs[i].Key)))
			}
		})
	}
	running.Wait()
	return out
}
