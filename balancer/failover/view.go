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
	// at holds the addresses of each node that is registered or has a session. A node that is only
	// cut off from etcd loses its registration but may keep its session.
	at map[string][]Address
	// newest holds the revision of the last change that was received for each record, including
	// deletions. The answer to a transaction and etcd's watch report the same change, and either
	// may be late.
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

// isNews reports whether a change is newer than all changes that were received for the same record,
// and if so, stores its revision.
func (v *view) isNews(c RecordChange) bool {
	if c.Revision <= v.newest[c.Key] {
		return false
	}
	v.newest[c.Key] = c.Revision
	return true
}

// locate updates this node's list of the addresses on which a node receives heartbeats.
func (v *view) locate(name string) {
	if m := v.members[name]; m != nil {
		v.at[name] = m.value.At
	} else if v.sessions[name] == nil {
		delete(v.at, name)
	}
}

// registered reports whether this run of the node is in etcd, as far as this node knows.
func (v *view) registered() bool {
	m := v.members[v.o.Name]
	return v.loaded && m != nil && m.value.Boot == v.o.Member.Boot
}

// alive reports whether the session of an owner is in etcd.
func (v *view) alive(o Owner) bool {
	s := v.sessions[o.Node]
	return s != nil && (s.unreadable || s.value.ID == o.Session)
}

// whose returns the node that has a device with a MAC, or "".
func (v *view) whose(mac string) string {
	for name, at := range v.at {
		if slices.ContainsFunc(at, func(a Address) bool { return a.MAC == mac && mac != "" }) {
			return name
		}
	}
	return ""
}

// record is a record of etcd as this node last received it.
type record[T any] struct {
	value T
	// revision is the revision of its last change, and known is the time when this node received
	// it.
	revision int64
	known    local.Time
	// unreadable reports whether the text can't be decoded, perhaps because a newer version has
	// written it.
	unreadable bool
}

// table holds the records of a kind, by name.
type table[T any] map[string]*record[T]

// set applies a change that was received at the time now.
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
