package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/store/tomlfile"
)

// api returns the handler of the Unix socket.
func (d *Daemon) api() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", d.view(func(v *status.View) any { return v.Status() }))
	mux.HandleFunc("GET /v1/services", d.view(func(v *status.View) any { return v.Services() }))
	mux.HandleFunc("GET /v1/traffic", d.getTraffic)
	mux.HandleFunc("GET /v1/endpoints", d.view(func(v *status.View) any { return v.Endpoints() }))
	mux.HandleFunc("GET /v1/frontends", d.view(func(v *status.View) any { return v.Frontends() }))
	mux.HandleFunc("GET /v1/diff", d.getDiff)
	mux.HandleFunc("GET /v1/overrides", d.view(func(v *status.View) any { return v.Overrides() }))
	mux.HandleFunc("POST /v1/overrides", d.operators(d.postOverrides))
	mux.HandleFunc("GET /v1/connections", d.getConnections)
	mux.HandleFunc("POST /v1/connections/kill", d.operators(d.postKill))
	mux.HandleFunc("GET /v1/explain", d.getExplain)
	mux.HandleFunc("POST /v1/reload", d.operators(d.postReload))
	mux.HandleFunc("POST /v1/check", d.postCheck)
	mux.HandleFunc("GET /v1/events", d.getEvents)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // this socket alone: what it shows is not for everyone
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /debug/vars", expvar.Handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuseCall(w, http.StatusNotFound, errors.New("vipd does not know "+r.Method+" "+r.URL.Path+": vipctl and vipd may be of different versions"))
	})
	return mux
}

func answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // it fails when the caller has gone
}

func refuseCall(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(api.Error{Message: err.Error()}) // as above
}

// view answers with what make returns, once or, with ?watch=1, whenever it has changed.
func (d *Daemon) view(make func(*status.View) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			answer(w, make(d.views.Look()))
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		d.follow(r.Context(), w, make)
	}
}

// getTraffic answers with the endpoints of all services, or of the one that the question names.
func (d *Daemon) getTraffic(w http.ResponseWriter, r *http.Request) {
	named, only := r.URL.Query()["endpoints"]
	answer(w, d.views.Look().Traffic(func(name balancer.Name) bool { return !only || slices.Contains(named, string(name)) }))
}

// watchInterval is how often an answer that is watched is made again for the sake of its counts.
const watchInterval = time.Second

// follow writes a line whenever the answer has changed, until the caller goes.
func (d *Daemon) follow(ctx context.Context, w http.ResponseWriter, make func(*status.View) any) {
	last := ""
	counts := time.NewTicker(watchInterval) // connections come and go without a word
	defer counts.Stop()
	for {
		compiled, synced := d.model.Changed(), d.engine.Changed()
		v := d.views.Look()
		v.Watched = true
		text, err := json.Marshal(make(v))
		if err != nil {
			d.Log.Error("writing an answer of the API", "err", err)
			return
		}
		if string(text) != last {
			last = string(text)
			if _, err := w.Write(append(text, '\n')); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush() // a writer that can't flush sends when it is full
		}
		select {
		case <-ctx.Done():
			return
		case <-compiled:
		case <-synced:
		case <-counts.C:
		}
	}
}

func (d *Daemon) postReload(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	how := tomlfile.Reload{AllowEmpty: q.Has(string(api.ReloadAllowEmpty)), Prune: q.Has(string(api.ReloadPrune))}
	result, err := d.Reload(tracing.Within(r.Context(), r.Header.Get(tracing.Header)), "vipctl reload"+signedBy(r), how)
	if err != nil {
		refuseCall(w, http.StatusInternalServerError, err)
		return
	}
	answer(w, result)
}

// signedBy is the author of a request as " by NAME", or "" if nobody is known.
func signedBy(r *http.Request) string {
	if by := author(r, r.URL.Query().Get("by")); by != "" {
		return " by " + by
	}
	return ""
}

// compareTime bounds how long a caller waits for the comparison with the kernel.
const compareTime = 30 * time.Second

// getDiff compares what is wanted with what the kernel has now. What differs is mended at once; what is left is answered.
func (d *Daemon) getDiff(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), compareTime, fmt.Errorf("it takes longer than %s", compareTime))
	defer cancel()
	if _, err := d.engine.Compare(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		refuseCall(w, http.StatusServiceUnavailable, fmt.Errorf("can't compare the kernel with the wanted state: %w; see \"vipctl status\"", err))
		return
	}
	answer(w, d.views.Look().Differences())
}

func (d *Daemon) postOverrides(w http.ResponseWriter, r *http.Request) {
	var q api.OverrideRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		refuseCall(w, http.StatusBadRequest, err)
		return
	}
	q.By = author(r, q.By)
	var result api.OverrideResult
	err := d.model.Update(r.Context(), func(s *model.State, o model.Overrides) (_ model.Overrides, recorded []events.Event, _ error) {
		place, now := s.Place(), time.Now()
		targets, err := place.Targets(&q)
		if err == nil {
			err = lookup.Spares(&s.Inputs, &q, targets)
		}
		var change balancer.Override
		if err == nil {
			change, err = lookup.Asked(&q, now)
		}
		if err != nil {
			return o, nil, err
		}
		for _, t := range targets {
			was := o.At(t)
			o = o.Say(t, change, place.Endpoints(t))
			recorded = append(recorded, transitions.ByHand(t, was, cmp.Or(o.At(t), &balancer.Override{By: q.By, Reason: q.Reason}), now)...)
			result.Targets = append(result.Targets, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: o.At(t)})
		}
		return o, recorded, nil
	})
	if err != nil {
		refuseCall(w, http.StatusBadRequest, err)
		return
	}
	d.settle(r.Context())
	answer(w, result)
}
