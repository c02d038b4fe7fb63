package userspace

import "golang.org/x/sys/unix"

// id identifies the source of an event: a side of a connection, a listener, or the bell. For a
// connection, the lower half contains the number of its table entry and the side. The upper half is
// the entry's generation, so a closed socket's late events do not affect another connection.
type id uint64

const (
	// noID is the ID of a connection without an entry in a table.
	noID        id = 0
	bellID      id = 1<<64 - 1
	listenerBit id = 1 << 63
)

func eventID(e *unix.EpollEvent) id { return id(uint32(e.Fd)) | id(uint32(e.Pad))<<32 }

func (i id) isListener() bool { return i&listenerBit != 0 }
func (i id) side() int        { return int(i & 1) }

type table struct {
	entries []entry
	free    []uint32
}

type entry struct {
	c          *conn
	generation uint32
}

// add adds a connection to the table, and returns the ID of the client's side. The backend's side
// has the next ID.
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
	e.generation = e.generation%(1<<31-1) + 1 // the top bit marks listeners, and a generation of 0 could result in noID
	return id(e.generation)<<32 | id(n)<<1
}

// find returns the connection with an ID, or nil if it was removed.
func (t *table) find(i id) *conn {
	n := uint32(i) >> 1
	if int(n) >= len(t.entries) || t.entries[n].generation != uint32(i>>32) {
		return nil
	}
	return t.entries[n].c
}

// remove removes the connection with an ID. It ignores noID.
func (t *table) remove(i id) {
	if i == noID {
		return
	}
	n := uint32(i) >> 1
	t.entries[n].c = nil
	t.free = append(t.free, n)
}
