package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/dataplane/explain"
	"vipd/dataplane/probe"
	"vipd/store/tomlfile"
)

// Options configures a Handler.
type Options struct {
	// Views builds the views that requests return.
	Views *status.Sources
	// ChangeGroup is the group whose members may change this vipd, in addition to root. If it is
	// "", only root may.
	ChangeGroup string
	Events      *events.History
	Log         *slog.Logger
	// Reload reads the configuration and all definitions again. by is the cause that the history
	// records.
	Reload func(ctx context.Context, by string, how tomlfile.Reload) (api.Reload, error)
	// Try starts a pending change of the configuration file.
	Try func(ctx context.Context, by string, q api.PendingRequest) (api.Reload, error)
	// Settle waits until the compiled state is applied.
	Settle func(context.Context)
	// Examined describes this host for package doctor.
	Examined func() doctor.Host
	// Silence returns the statistics of an endpoint that does not answer connections.
	Silence func(balancer.Target) (explain.Silence, bool)
	// Ownership returns the VIPs with one owner. MoveVIP passes a VIP's group to another host.
	// Standby puts this host on standby, or ends the standby. Without VRRP, MoveVIP and Standby
	// return an error.
	Ownership func(context.Context) api.Ownership
	MoveVIP   func(context.Context, netip.Addr, api.MoveRequest) error
	Standby   func(context.Context, api.StandbyRequest) error
}

// server answers requests on the API's socket.
type server struct{ Options }

// Handler returns the handler for the API's socket.
func Handler(o Options) http.Handler {
	srv := server{o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", srv.view(func(v *status.View) any { return v.Status() }))
	mux.HandleFunc("GET /v1/services", srv.getServices)
	mux.HandleFunc("GET /v1/traffic", srv.getTraffic)
	mux.HandleFunc("GET /v1/endpoints", srv.view(func(v *status.View) any { return v.Endpoints() }))
	mux.HandleFunc("GET /v1/frontends", srv.view(func(v *status.View) any { return v.Frontends() }))
	mux.HandleFunc("GET /v1/diff", srv.getDiff)
	mux.HandleFunc("GET /v1/overrides", srv.view(func(v *status.View) any { return v.Overrides() }))
	mux.HandleFunc("POST /v1/overrides", srv.operators(srv.postOverrides))
	mux.HandleFunc("GET /v1/connections", srv.getConnections)
	mux.HandleFunc("POST /v1/connections/kill", srv.operators(srv.postKill))
	mux.HandleFunc("GET /v1/explain", srv.getExplain)
	mux.HandleFunc("POST /v1/reload", srv.operators(srv.postReload))
	mux.HandleFunc("GET /v1/pending", root(srv.getPending))
	mux.HandleFunc("POST /v1/pending", root(srv.postPending))
	mux.HandleFunc("POST /v1/pending/abort", srv.operators(srv.postAbort))
	mux.HandleFunc("POST /v1/check", srv.postCheck)
	mux.HandleFunc("POST /v1/check-direct", srv.operators(srv.postCheckDirect))
	mux.HandleFunc("GET /v1/vips", srv.getVIPs)
	mux.HandleFunc("POST /v1/vips/{vip}/move", srv.operators(srv.postMove))
	mux.HandleFunc("POST /v1/standby", srv.operators(srv.postStandby))
	mux.HandleFunc("GET /v1/events", srv.getEvents)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // only on this socket, because profiles are not for every user
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.Handle("GET /debug/vars", expvar.Handler())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpserve.Refuse(w, http.StatusNotFound, errors.New("vipd does not know "+r.Method+" "+r.URL.Path+": vipctl and vipd might have different versions"))
	})
	return mux
}

// view returns a handler that answers with the result of the function make. With ?watch=1, it
// answers again after each change.
func (srv server) view(make func(*status.View) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			httpserve.Answer(w, make(srv.Views.Look()))
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		srv.follow(r.Context(), w, make)
	}
}

// getServices answers with all services. Only callers that may change vipd get the secrets in their
// definitions.
func (srv server) getServices(w http.ResponseWriter, r *http.Request) {
	_, trusted := httpserve.MayChange(r, srv.ChangeGroup)
	srv.view(func(v *status.View) any {
		all := v.Services()
		for i := range all {
			if !trusted {
				all[i].Definition = probe.WithoutSecrets(all[i].Definition)
			}
		}
		return all
	})(w, r)
}

// getTraffic answers with the counts of all services and their endpoints. If the request names
// services, only their endpoints are included.
func (srv server) getTraffic(w http.ResponseWriter, r *http.Request) {
	named, only := r.URL.Query()["endpoints"]
	httpserve.Answer(w, srv.Views.Look().Traffic(func(name balancer.Name) bool { return !only || slices.Contains(named, string(name)) }))
}

// watchInterval is the interval at which a watched answer is rebuilt to update its counts.
const watchInterval = time.Second

// follow writes a line whenever the answer has changed, until the caller disconnects.
func (srv server) follow(ctx context.Context, w http.ResponseWriter, make func(*status.View) any) {
	last := ""
	counts := time.NewTicker(watchInterval) // counts change without a notification
	defer counts.Stop()
	for {
		compiled, synced := srv.Views.Model.Changed(), srv.Views.Engine.Changed()
		v := srv.Views.Look()
		v.Watched = true
		text, err := json.Marshal(make(v))
		if err != nil {
			srv.Log.Error("an API answer can't be written", "err", err)
			return
		}
		if string(text) != last {
			last = string(text)
			if _, err := w.Write(append(text, '\n')); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush() // a writer that can't flush sends when its buffer is full
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

func (srv server) postReload(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	command := "vipctl reload"
	if q.Has(string(api.ReloadConfirm)) {
		command = "vipctl confirm"
	}
	srv.reload(w, r, command, tomlfile.Reload{
		AllowEmpty: q.Has(string(api.ReloadAllowEmpty)), Prune: q.Has(string(api.ReloadPrune)), By: httpserve.Author(r, q.Get("by")),
	})
}

// reload performs a reload for the caller, and answers with the result.
func (srv server) reload(w http.ResponseWriter, r *http.Request, command string, how tomlfile.Reload) {
	result, err := srv.Reload(tracing.Within(r.Context(), r.Header.Get(tracing.Header)), command+signedBy(r), how)
	if err != nil {
		httpserve.Refuse(w, http.StatusInternalServerError, err)
		return
	}
	httpserve.Answer(w, result)
}

// signedBy returns " by NAME" for the author of a request, or "" if the author is unknown.
func signedBy(r *http.Request) string {
	if by := httpserve.Author(r, r.URL.Query().Get("by")); by != "" {
		return " by " + by
	}
	return ""
}

// compareTime is the maximum time for which a caller waits for the comparison with the kernel.
const compareTime = 30 * time.Second

// getDiff compares the compiled state with the kernel. The comparison repairs differences. The
// answer contains the remaining differences.
func (srv server) getDiff(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), compareTime, fmt.Errorf("the comparison takes longer than %s", compareTime))
	defer cancel()
	if _, err := srv.Views.Engine.Compare(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		httpserve.Refuse(w, http.StatusServiceUnavailable, fmt.Errorf("can't compare the kernel with the wanted state: %w; see \"vipctl status\"", err))
		return
	}
	httpserve.Answer(w, srv.Views.Look().Differences())
}

func (srv server) postOverrides(w http.ResponseWriter, r *http.Request) {
	var q api.OverrideRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	q.By = httpserve.Author(r, q.By)
	var result api.OverrideResult
	err := srv.Views.Model.Update(r.Context(), func(s *model.State, o model.Overrides) (_ model.Overrides, recorded []events.Event, _ error) {
		place, now := s.Place(), time.Now()
		targets, err := place.Targets(&q)
		if err == nil {
			err = lookup.CheckCapacity(&s.Inputs, &q, targets)
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
			o = o.Apply(t, change, place.Endpoints(t), place.Services.At(t.Service).HasAgent())
			recorded = append(recorded, transitions.OverrideEvents(t, was, cmp.Or(o.At(t), &balancer.Override{By: q.By, Reason: q.Reason}), now)...)
			result.Targets = append(result.Targets, api.OverrideTarget{Service: t.Service, Address: t.Address(), Override: o.At(t)})
		}
		return o, recorded, nil
	})
	if err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	srv.Settle(r.Context())
	httpserve.Answer(w, result)
}

// operators returns a handler that passes a request to h only if the caller may change vipd.
func (srv server) operators(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		group := srv.ChangeGroup
		if name, ok := httpserve.MayChange(r, group); !ok {
			text := "%s may not change this vipd; only root may: use sudo, or set api.change_group to a group of operators and restart vipd"
			if group != "" {
				text = "%s may not change this vipd; only root and the group " + group + " (api.change_group) may: use sudo, or join the group and log in again"
			}
			httpserve.Refuse(w, http.StatusForbidden, fmt.Errorf(text, name))
			return
		}
		h(w, r)
	}
}
