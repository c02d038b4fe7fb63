package failover

import (
	"encoding/json"
	"slices"

	"vipd/balancer/failover/local"
)

// view is this node's copy of etcd's records.
type view struct {
	*env
	members  table[Member]
	sessions table[Session]
	owners   table[Owner]
	moves    table[Move]
	fences   table[Fence]
	// at maps each node that is registered or has a session to its addresses. A node that is only
	// cut off from etcd loses its registration but may keep its session.
	at map[string][]Address
	// newest maps each record to the revision of its newest known change, which may be a deletion.
	// The answer to a transaction and etcd's watch report the same change, and either may be late.
	newest map[Key]int64
	// loaded reports whether all records were read after this run was registered. revision is the
	// newest known revision.
	loaded   bool
	revision int64
	// etcdLost reports whether etcd is unreachable.
	etcdLost bool
}

func newView(e *env) *view {
	return &view{
		env: e, members: table[Member]{}, sessions: table[Session]{}, owners: table[Owner]{}, moves: table[Move]{}, fences: table[Fence]{},
		at: map[string][]Address{}, newest: map[Key]int64{},
	}
}

// missing returns a deletion for each known record that the list all lacks.
func (v *view) missing(all []RecordChange, revision int64) (deleted []RecordChange) {
	listed := map[Key]bool{}
	for _, c := range all {
		listed[c.Key] = true
	}
	for k := range v.newest {
		if !listed[k] {
			deleted = append(deleted, RecordChange{Key: k, Revision: revision})
		}
	}
	return deleted
}

// isNews reports whether a change is newer than all known changes to the same record. If so, it
// stores the change's revision.
func (v *view) isNews(c RecordChange) bool {
	if c.Revision <= v.newest[c.Key] {
		return false
	}
	v.newest[c.Key] = c.Revision
	return true
}

// locate updates the list of addresses at which a node receives heartbeats.
func (v *view) locate(name string) {
	if m := v.members[name]; m != nil {
		v.at[name] = m.value.At
	} else if v.sessions[name] == nil {
		delete(v.at, name)
	}
}

// registered reports whether this node's current run is registered in etcd, according to this view.
func (v *view) registered() bool {
	m := v.members[v.o.Name]
	return v.loaded && m != nil && m.value.Boot == v.o.Member.Boot
}

// alive reports whether an owner's session is in etcd.
func (v *view) alive(o Owner) bool {
	s := v.sessions[o.Node]
	return s != nil && (s.unreadable || s.value.ID == o.Session)
}

func (v *view) whose(mac string) string {
	for name, at := range v.at {
		if slices.ContainsFunc(at, func(a Address) bool { return a.MAC == mac && mac != "" }) {
			return name
		}
	}
	return ""
}

// record is an etcd record as this node last received it.
type record[T any] struct {
	value T
	// revision is the record's revision, and known is when this node received that revision.
	revision int64
	known    local.Time
	// unreadable reports whether the record's text can't be decoded, perhaps because a newer
	// version has written it.
	unreadable bool
}

// table maps the names of records of one kind to the records.
type table[T any] map[string]*record[T]

func (t table[T]) set(now local.Time, c RecordChange) {
	if c.Text == nil {
		delete(t, c.Key.Name)
		return
	}
	r := &record[T]{revision: c.Revision, known: now}
	r.unreadable = json.Unmarshal(c.Text, &r.value) != nil
	t[c.Key.Name] = r
}

// at returns the revision of a record, or 0 if it does not exist.
func (t table[T]) at(name string) int64 {
	if r := t[name]; r != nil {
		return r.revision
	}
	return 0
}
