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

// readTable is a flowTable that can be read.
type readTable struct {
	flowTable
	reads int
	// reading is called when a reading has met all flows; nil means nothing is.
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

// carry returns what carries on the flows of a table, with a frontend.
func carry(t *testing.T, table *readTable) *Carried {
	table.flows = map[string]conntrack.Flow{}
	c := NewCarried(NewFlows(table, slog.New(slog.DiscardHandler)), func() (Conn, error) { return table, nil })
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	comes(c, 0)
	return c
}

// comes has the n-th frontend applied.
func comes(c *Carried, n int) {
	c.Applied([]dataplane.Change{{Key: key(n), New: web(key(n), 1)}}, nil)
}

// TestChangesDoNotWaitForReadings: frontends come while conntrack is read, and what begins meanwhile is counted the next time.
func TestChangesDoNotWaitForReadings(t *testing.T) {
	table, began, end := &readTable{}, make(chan bool), make(chan bool)
	begins := sync.OnceFunc(func() { close(began) })
	table.reading = func() { begins(); <-end }
	c := carry(t, table)
	var both sync.WaitGroup
	both.Go(func() { c.Counters(t.Context()) })
	<-began
	applied := make(chan bool)
	both.Go(func() { comes(c, 2); c.Again(); close(applied) })
	select {
	case <-applied:
	case <-time.After(wait.Patience):
		t.Error("a change waits for conntrack to be read")
	}
	table.add("a connection", key(0), 1, conntrack.DstNAT|conntrack.SeenReply)
	close(end)
	both.Wait()
	wait.For(t, 30*time.Second, "the connection to be counted", func() bool { return len(c.Counters(t.Context())) == 1 })
}

// TestReadingsAreFew: however often frontends come, conntrack is read no more often than other counters.
func TestReadingsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &readTable{}
		c := carry(t, table)
		for range 10 {
			comes(c, 0)
			c.Counters(t.Context())
		}
		if table.reads != 1 {
			t.Errorf("conntrack was read %d times at once", table.reads)
		}
	})
}

// TestNoPrivilege: where conntrack tells this process nothing, no connection is carried on, and nothing fails.
func TestNoPrivilege(t *testing.T) {
	table := &readTable{refused: fs.ErrPermission}
	c := carry(t, table)
	err := c.Connections(t.Context(), dataplane.ConnectionQuery{}, func(*dataplane.Connection) error { return nil })
	if n := c.Counters(t.Context()); err != nil || len(n) > 0 || table.reads != 1 {
		t.Errorf("got %v and %v after %d readings, want nothing after one", n, err, table.reads)
	}
}
