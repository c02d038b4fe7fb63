package userspace

import "golang.org/x/sys/unix"

// id identifies the source of an event: a side of a connection, a listener or the bell. Its lower
// half is a number and a side. Its upper half is the generation of the number, so late events of a
// closed socket affect no other connection.
type id uint64

const (
	// noID is the ID of a connection that is in no table.
	noID        id = 0
	bellID      id = 1<<64 - 1
	listenerBit id = 1 << 63
)

func eventID(e *unix.EpollEvent) id { return id(uint32(e.Fd)) | id(uint32(e.Pad))<<32 }

func (i id) isListener() bool { return i&listenerBit != 0 }
func (i id) side() int        { return int(i & 1) }

// table holds the connections of a loop.
type table struct {
	entries []entry
	free    []uint32
}

type entry struct {
	c          *conn
	generation uint32
}

// add returns the ID of the client's side; the backend's follows it.
func (t *table) add(c *conn) id {
	var n uint32
	if last := len(t.free) - 1; last >= 0 {
		n, t.free = t.free[last], t.free[:last]
	} else {
		n = uint32(len(t.entries))
		t.entries = append(t.entries, entry{})
	}
	e := &t.entries[n]
	e.c = c
	e.generation = e.generation%(1<<31-1) + 1 // the top bit marks listeners, and 0 would allow noID
	return id(e.generation)<<32 | id(n)<<1
}

// find returns the connection of an ID, or nil if it has ended.
func (t *table) find(i id) *conn {
	n := uint32(i) >> 1
	if int(n) >= len(t.entries) || t.entries[n].generation != uint32(i>>32) {
		return nil
	}
	return t.entries[n].c
}

// remove removes a connection, unless it is in no table.
func (t *table) remove(i id) {
	if i == noID {
		return
	}
	n := uint32(i) >> 1
	t.entries[n].c = nil
	t.free = append(t.free, n)
}
