package dnat

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/test/wait"
)

// readTable is a flowTable whose flows can also be listed.
type readTable struct {
	flowTable
	reads int
	// reading is called when a list has returned all flows. It may be nil.
	reading func()
	refused error
}

func (r *readTable) Each(_ context.Context, _ conntrack.Filter, visit func(*conntrack.Flow) error) (err error) {
	r.mu.Lock()
	r.reads++
	for _, flow := range r.flows {
		err = errors.Join(err, visit(&flow))
	}
	r.mu.Unlock()
	if r.reading != nil {
		r.reading()
	}
	return errors.Join(err, r.refused)
}

// carry returns a Carried for a table's flows, with one frontend applied.
func carry(t *testing.T, table *readTable) *Carried {
	table.flows = map[string]conntrack.Flow{}
	c := NewCarried(NewFlows(table, slog.New(slog.DiscardHandler)), func() (Conn, error) { return table, nil })
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	applyFrontend(c, 0)
	return c
}

func applyFrontend(c *Carried, n int) {
	c.Applied([]dataplane.Change{{Key: key(n), New: web(key(n), 1)}}, nil)
}

// TestChangesDoNotWaitForReadings applies frontends while conntrack is being read. The changes must
// not wait for the reading, and the next reading must count the new connections.
func TestChangesDoNotWaitForReadings(t *testing.T) {
	table, began, end := &readTable{}, make(chan bool), make(chan bool)
	begins := sync.OnceFunc(func() { close(began) })
	table.reading = func() { begins(); <-end }
	c := carry(t, table)
	var both sync.WaitGroup
	both.Go(func() { c.Counters(t.Context()) })
	<-began
	applied := make(chan bool)
	both.Go(func() { applyFrontend(c, 2); c.Again(); close(applied) })
	select {
	case <-applied:
	case <-time.After(wait.Patience):
		t.Error("Applied waited for the reading, want no wait")
	}
	table.add("a connection", key(0), 1, conntrack.DstNAT|conntrack.SeenReply)
	close(end)
	both.Wait()
	wait.For(t, 30*time.Second, "the connection to be counted", func() bool { return len(c.Counters(t.Context())) == 1 })
}

// TestReadingsAreFew applies many frontends. conntrack must not be read more often than other
// counters.
func TestReadingsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &readTable{}
		c := carry(t, table)
		for range 10 {
			applyFrontend(c, 0)
			c.Counters(t.Context())
		}
		if table.reads != 1 {
			t.Errorf("readings of conntrack = %d, want 1", table.reads)
		}
	})
}

// TestNoPrivilege makes reading conntrack fail, as without privileges. No connection may be
// reported, and no call may fail. After the first failure, conntrack must not be read again.
func TestNoPrivilege(t *testing.T) {
	table := &readTable{refused: fs.ErrPermission}
	c := carry(t, table)
	err := c.Connections(t.Context(), dataplane.ConnectionQuery{}, func(*dataplane.Connection) error { return nil })
	if n := c.Counters(t.Context()); err != nil || len(n) > 0 || table.reads != 1 {
		t.Errorf("connections = %v, error = %v, readings = %d; want no connections, nil, 1", n, err, table.reads)
	}
}
