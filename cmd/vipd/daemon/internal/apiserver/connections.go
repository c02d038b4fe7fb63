package apiserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/dataplane"
)

// getConnections writes connections as a JSON array while it reads them. With ?follow, it writes
// connections that start or end instead. A failure after the first connection aborts the response.
func (srv server) getConnections(w http.ResponseWriter, r *http.Request) {
	q, err := srv.connectionQuery(r)
	switch {
	case err != nil:
		httpserve.Refuse(w, http.StatusNotFound, err)
	case r.URL.Query().Has("follow"):
		srv.followConnections(w, r, &q)
	default:
		srv.listConnections(w, r, q)
	}
}

// connectionQuery reads the filter of a request for connections.
func (srv server) connectionQuery(r *http.Request) (dataplane.ConnectionQuery, error) {
	q, err := api.ParseConnectionQuery(r.URL.Query())
	if err == nil && q.Service != "" {
		_, err = srv.Views.Model.State().Place().Service(q.Service)
	}
	return q, err
}

// listConnections writes the list of connections while it reads them.
func (srv server) listConnections(w http.ResponseWriter, r *http.Request, q dataplane.ConnectionQuery) {
	w.Header().Set("Content-Type", "application/json")
	out, begin := bufio.NewWriter(w), "["
	err := srv.Views.Modes.Connections(r.Context(), q, func(c *dataplane.Connection) error {
		text, err := json.Marshal(c)
		if err == nil {
			_, err = out.WriteString(begin)
		}
		if err == nil {
			_, err = out.Write(append(text, '\n'))
		}
		begin = ","
		return err
	})
	switch {
	case err != nil && begin == "[":
		httpserve.Refuse(w, http.StatusInternalServerError, err)
	case err != nil:
		panic(http.ErrAbortHandler) // shows the caller that the list is incomplete
	case begin == "[":
		httpserve.Answer(w, []api.Connection{})
	default:
		_, _ = out.WriteString("]\n") // an error means that the caller has disconnected
		_ = out.Flush()
	}
}

// followConnections writes a line for each connection that starts or ends. If the reader is too
// slow, some connections are missing, and a line reports their number.
func (srv server) followConnections(w http.ResponseWriter, r *http.Request, q *dataplane.ConnectionQuery) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := json.NewEncoder(w)
	var writing sync.Mutex // losses and connections may be reported by different goroutines
	write := func(e api.ConnectionEvent) {
		writing.Lock()
		defer writing.Unlock()
		if out.Encode(e) != nil || http.NewResponseController(w).Flush() != nil {
			cancel() // the caller has disconnected
		}
	}
	write(api.ConnectionEvent{Event: api.Following})
	err := srv.Views.Modes.Follow(ctx, func(began bool, c *dataplane.Connection) {
		e := api.ConnectionEvent{Event: api.Ended, At: time.Now(), Connection: c}
		if began {
			e.Event = api.Began
		}
		if q.Matches(c) {
			write(e)
		}
	}, func(uint64) { write(api.ConnectionEvent{Event: api.Missed, At: time.Now()}) })
	if err != nil {
		srv.Log.Warn("connections can't be followed", "err", err)
		panic(http.ErrAbortHandler) // shows the caller that the answer is incomplete
	}
}

// postKill ends the connections that the request selects.
func (srv server) postKill(w http.ResponseWriter, r *http.Request) {
	q, err := srv.connectionQuery(r)
	if err == nil && q == (dataplane.ConnectionQuery{}) {
		err = errors.New("vipd does not end all of this node's connections at once: name a service, client, endpoint or state")
	}
	if err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	n, err := srv.Views.Modes.Kill(r.Context(), q)
	if n > 0 {
		e := events.Event{
			Kind: events.Override, Service: q.Service, Text: fmt.Sprintf("connections ended manually: %d", n), Cause: "vipctl conns --kill" + signedBy(r),
		}
		if q.Backend.IsValid() {
			e.Endpoint = q.Backend.String()
		}
		srv.Events.Record(e)
	}
	if err != nil {
		httpserve.Refuse(w, http.StatusInternalServerError, fmt.Errorf("%w (%d connections were ended)", err, n))
		return
	}
	httpserve.Answer(w, api.Killed{Connections: n})
}
