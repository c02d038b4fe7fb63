package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/cmd/vipd/daemon/internal/page"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/dataplane/userspace"
	"vipd/store/etcd/fleet"
)

// Options configures a Handler.
type Options struct {
	// Views builds the views that requests return.
	Views *status.Sources
	// Metrics answers scrapes.
	Metrics http.HandlerFunc
	Events  *events.History
	// Fleet returns the nodes of the fleet. It is nil if this node does not belong to a fleet.
	Fleet func(context.Context) ([]fleet.Node, error)
}

// server answers requests to api.http.
type server struct{ Options }

// Bounds returns the limits for api.http's clients, many of which may follow the status page.
// Clients get a quarter of the file descriptors that userspace mode does not use: for example, 256
// of 1024 if the process may open 4096. So they can't use up the descriptors that health checks,
// files and services need.
func Bounds() httpserve.Bounds {
	b := httpserve.Default()
	b.Connections = max(b.Connections, userspace.Reserve()/4)
	return b
}

// Handler returns the handler for api.http: the status page, metrics and health. It changes
// nothing.
func Handler(o Options) http.Handler {
	srv := server{o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /healthz", srv.check(srv.unhealthy, nil))
	mux.HandleFunc("GET /readyz", srv.check(func() []string { return o.Views.Look().Unready() }, o.Views.HostProblems))
	page.New(page.Options{
		Status:  func() api.Status { return o.Views.Look().Status() },
		Traffic: func() api.Traffic { return o.Views.Look().Traffic(func(balancer.Name) bool { return true }) },
		Events: func() []events.Event {
			all, _ := o.Events.Read(0, 0)
			return all
		},
		Keys:  func(name balancer.Name) []balancer.Key { return o.Views.Look().Keys(name) },
		Fleet: o.Fleet,
	}).Register(mux)
	return onlyOwnNames(httpserve.LimitFollowers(mux, Bounds()), ownNames(&o.Views.Config))
}

// verdict is the body of /healthz and /readyz.
type verdict struct {
	OK bool `json:"ok"`
	// Reasons lists the reasons for a negative answer. It is empty if the answer is positive.
	Reasons []string `json:"reasons"`
	// Problems lists problems of the host that may prevent traffic although everything is applied.
	// Only /readyz reports them.
	Problems []string `json:"problems,omitempty"`
	Mode     string   `json:"mode"`
	// Revision is the applied revision of the store.
	Revision int64 `json:"revision_applied"`
}

func (srv server) check(reasons func() []string, problems func() []balancer.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		v := verdict{Reasons: append([]string{}, reasons()...), Mode: string(srv.Views.Modes.Serving().Name), Revision: srv.Views.Engine.Status().Applied.Store}
		v.OK = len(v.Reasons) == 0
		if problems != nil {
			for _, p := range problems() {
				v.Problems = append(v.Problems, p.String())
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if !v.OK {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		httpserve.Answer(w, v)
	}
}

// patience is how much longer than sync.min_interval a change may stay unapplied before the daemon
// is unhealthy.
const patience = time.Minute

// unhealthy returns the reasons why vipd is unhealthy: a loop is stuck, or a change has waited too
// long. It ignores frontends in backoff, which are reported as problems.
func (srv server) unhealthy() []string {
	var reasons []string
	if stuck := srv.Views.Engine.Working(); stuck > patience {
		reasons = append(reasons, fmt.Sprintf("the engine has made no progress for %s", stuck.Round(time.Second)))
	}
	if stuck := srv.Views.Model.Waiting(); stuck > patience {
		reasons = append(reasons, fmt.Sprintf("a change has waited %s to be compiled", stuck.Round(time.Second)))
	}
	if since := srv.Views.Engine.Behind(); !since.IsZero() && time.Since(since) > patience+srv.Views.Config.Sync.MinInterval {
		reasons = append(reasons, overdue(time.Since(since), srv.Views.Engine.Status().LastError))
	}
	return reasons
}

// overdue describes how long changes have not been applied, and the last error.
func overdue(behind time.Duration, last string) string {
	text := fmt.Sprintf("changes have waited %s to be applied", behind.Round(time.Second))
	if last != "" {
		text += ": " + last
	}
	return text
}
