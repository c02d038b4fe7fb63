package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
)

// eventsAtOnce is how many events are looked at for one page.
const eventsAtOnce = 500

// getEvents answers with what the journal has after ?since, page by page, and with ?follow=1 with what comes.
func (d *Daemon) getEvents(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	since, err := strconv.ParseUint(q.Get("since"), 10, 64)
	if err != nil && q.Get("since") != "" {
		refuseCall(w, http.StatusBadRequest, fmt.Errorf("since=%q is not the number of an event", q.Get("since")))
		return
	}
	var wanted []string // all, or one or several with commas
	if kind := q.Get("kind"); kind != "" {
		wanted = strings.Split(kind, ",")
	}
	for _, kind := range wanted {
		if kinds := events.Kind("").Values(); !slices.Contains(kinds, kind) {
			refuseCall(w, http.StatusBadRequest, fmt.Errorf("there are no events of kind %q; there are %s", kind, strings.Join(kinds, ", ")))
			return
		}
	}
	service, follow, first := balancer.Name(q.Get("service")), q.Get("follow") != "", since == 0
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	for {
		more := d.journal.Changed()
		page := api.EventPage{Events: []api.Event{}, Next: since}
		var all []api.Event
		if all, page.Missed = d.journal.Read(since, eventsAtOnce); len(all) > 0 {
			page.Next = all[len(all)-1].Seq
		}
		if first {
			page.Missed = 0 // a new follower misses nothing from before
		}
		for _, e := range all {
			if (service == "" || e.Service == service) && (wanted == nil || slices.Contains(wanted, string(e.Kind))) {
				page.Events = append(page.Events, e)
			}
		}
		if len(page.Events) > 0 || page.Missed > 0 || first {
			if err := out.Encode(page); err != nil {
				return // the caller has gone
			}
			_ = http.NewResponseController(w).Flush() // a writer that can't flush sends when it is full
		}
		since, first = page.Next, false
		switch {
		case len(all) == eventsAtOnce: // there may be more
			continue
		case !follow:
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-more:
		}
	}
}
