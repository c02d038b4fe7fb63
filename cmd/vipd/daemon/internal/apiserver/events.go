package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/httpserve"
)

// eventsAtOnce is the maximum number of events in a page.
const eventsAtOnce = 500

// eventQuery is the filter of a request for events.
type eventQuery struct {
	since   uint64
	kinds   []string // empty means all kinds
	service balancer.Name
	follow  bool
}

func readEventQuery(from url.Values) (q eventQuery, err error) {
	q.service, q.follow = balancer.Name(from.Get("service")), from.Get("follow") != ""
	if text := from.Get("since"); text != "" {
		if q.since, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, fmt.Errorf("since=%q is not an event number", text)
		}
	}
	if text := from.Get("kind"); text != "" { // comma-separated
		q.kinds = strings.Split(text, ",")
	}
	for _, kind := range q.kinds {
		if known := events.Kind("").Values(); !slices.Contains(known, kind) {
			return q, fmt.Errorf("there are no events of kind %q; the kinds are %s", kind, strings.Join(known, ", "))
		}
	}
	return q, nil
}

// names reports whether the query selects the event.
func (q *eventQuery) names(e *api.Event) bool {
	return (q.service == "" || e.Service == q.service) && (len(q.kinds) == 0 || slices.Contains(q.kinds, string(e.Kind)))
}

// page reads the next page of the history, and advances the query. more reports whether there may
// be more events.
func (q *eventQuery) page(j *events.History) (page api.EventPage, more bool) {
	all, missed := j.Read(q.since, eventsAtOnce)
	if len(all) > 0 {
		q.since = all[len(all)-1].Seq
	}
	page = api.EventPage{Missed: missed, Events: []api.Event{}, Next: q.since}
	for i := range all {
		if q.names(&all[i]) {
			page.Events = append(page.Events, all[i])
		}
	}
	return page, len(all) == eventsAtOnce
}

// getEvents answers with the events after number ?since, page by page. With ?follow=1, it continues
// with new events.
func (srv server) getEvents(w http.ResponseWriter, r *http.Request) {
	q, err := readEventQuery(r.URL.Query())
	if err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	for first := q.since == 0; ; first = false {
		changed := srv.Events.Changed()
		page, more := q.page(srv.Events)
		if first {
			page.Missed = 0 // events before the request do not count as missed
		}
		if len(page.Events) > 0 || page.Missed > 0 || first {
			if err := out.Encode(page); err != nil {
				return // the caller has disconnected
			}
			_ = http.NewResponseController(w).Flush() // a writer that can't flush sends when its buffer is full
		}
		switch {
		case more:
			continue
		case !q.follow:
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}
