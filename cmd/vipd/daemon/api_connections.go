package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/dataplane"
)

// getConnections writes connections as they are found, as one JSON array, or, with ?follow, those that begin and end. A failure
// after the first one breaks the answer off.
func (d *Daemon) getConnections(w http.ResponseWriter, r *http.Request) {
	q, err := d.connectionQuery(r)
	switch {
	case err != nil:
		refuseCall(w, http.StatusNotFound, err)
	case r.URL.Query().Has("follow"):
		d.followConnections(w, r, &q)
	default:
		d.listConnections(w, r, q)
	}
}

// connectionQuery reads which connections a request is about.
func (d *Daemon) connectionQuery(r *http.Request) (dataplane.ConnectionQuery, error) {
	q, err := api.ParseConnectionQuery(r.URL.Query())
	if err == nil && q.Service != "" {
		_, err = d.model.State().Place().Service(q.Service)
	}
	return q, err
}

const (
	// mostUnheard is how many lists may wait for the kernel's first word. One that was given up does so until the kernel answers.
	mostUnheard = 4
	// firstWord is how long a caller waits for it, in steps: a machine that stalls for longer than one is no silent kernel.
	firstWord, wordSteps = 800 * time.Millisecond, 8
)

// listConnections has the list written by the goroutine that reads it. Where the kernel says nothing, the caller is told so, and the
// goroutine ends when the kernel lets go of it.
func (d *Daemon) listConnections(w http.ResponseWriter, r *http.Request, q dataplane.ConnectionQuery) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	l := &connectionList{w: w, out: bufio.NewWriter(w), begin: "[", ended: make(chan error, 1)}
	go func() {
		select {
		case d.unheard <- struct{}{}:
			l.heard = sync.OnceFunc(func() { <-d.unheard })
			defer l.heard()
			l.ended <- d.modeSwitch.Connections(ctx, q, l.visit)
		case <-ctx.Done():
		}
	}()
	for range wordSteps {
		select {
		case err := <-l.ended:
			l.end(err)
			return
		case <-time.After(firstWord / wordSteps):
		}
	}
	if l.taken.CompareAndSwap(false, true) {
		refuseCall(w, http.StatusServiceUnavailable, fmt.Errorf("the kernel has not answered for %s: connections can't be listed now; try again later", firstWord))
		return
	}
	l.end(<-l.ended)
}

// connectionList is one that is written as it comes.
type connectionList struct {
	w     http.ResponseWriter
	out   *bufio.Writer
	begin string // what comes before the next connection
	heard func() // has another list wait for its first word
	ended chan error
	// taken: the answer is the list's, which speaks then, or the refusal's.
	taken  atomic.Bool
	speaks bool
}

func (l *connectionList) visit(c *dataplane.Connection) error {
	if !l.speaks {
		if !l.taken.CompareAndSwap(false, true) {
			return context.Canceled
		}
		l.speaks = true
		l.heard()
		l.w.Header().Set("Content-Type", "application/json")
	}
	if c == nil {
		return nil
	}
	text, err := json.Marshal(c)
	if err == nil {
		_, err = l.out.WriteString(l.begin)
	}
	if err == nil {
		_, err = l.out.Write(append(text, '\n'))
	}
	l.begin = ","
	return err
}

// end ends the list, in which err went wrong.
func (l *connectionList) end(err error) {
	switch {
	case err != nil && l.begin == "[":
		refuseCall(l.w, http.StatusInternalServerError, err)
	case err != nil:
		panic(http.ErrAbortHandler) // the caller sees that the list is not complete
	case l.begin == "[":
		answer(l.w, []api.Connection{})
	default:
		_, _ = l.out.WriteString("]\n") // as in answer
		_ = l.out.Flush()
	}
}

// followConnections writes a line for each connection that begins or ends. A reader that is too slow misses some, and is told.
func (d *Daemon) followConnections(w http.ResponseWriter, r *http.Request, q *dataplane.ConnectionQuery) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := json.NewEncoder(w)
	var writing sync.Mutex // losses may be told by another goroutine than connections
	write := func(e api.ConnectionEvent) {
		writing.Lock()
		defer writing.Unlock()
		if out.Encode(e) != nil || http.NewResponseController(w).Flush() != nil {
			cancel() // the caller has gone
		}
	}
	write(api.ConnectionEvent{Event: api.Following})
	err := d.modeSwitch.Follow(ctx, func(began bool, c *dataplane.Connection) {
		e := api.ConnectionEvent{Event: api.Ended, At: time.Now(), Connection: c}
		if began {
			e.Event = api.Began
		}
		if q.Names(c) {
			write(e)
		}
	}, func(uint64) { write(api.ConnectionEvent{Event: api.Missed, At: time.Now()}) })
	if err != nil {
		d.Log.Warn("connections can't be followed", "err", err)
		panic(http.ErrAbortHandler) // the caller sees that more should have come
	}
}

// postKill ends connections.
func (d *Daemon) postKill(w http.ResponseWriter, r *http.Request) {
	q, err := d.connectionQuery(r)
	if err == nil && q == (dataplane.ConnectionQuery{}) {
		err = errors.New("all connections of this node are not ended at once: say of which service, client or endpoint, or in which state")
	}
	if err != nil {
		refuseCall(w, http.StatusBadRequest, err)
		return
	}
	n, err := d.modeSwitch.Kill(r.Context(), q)
	if n > 0 {
		e := events.Event{
			Kind: events.Override, Service: q.Service, Text: fmt.Sprintf("connections ended by hand: %d", n), Cause: "vipctl conns --kill" + signedBy(r),
		}
		if q.Backend.IsValid() {
			e.Endpoint = q.Backend.String()
		}
		d.events.Record(e)
	}
	if err != nil {
		refuseCall(w, http.StatusInternalServerError, fmt.Errorf("%w (%d connections were ended)", err, n))
		return
	}
	answer(w, api.Killed{Connections: n})
}
