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

// Options are what a Handler is made from.
type Options struct {
	// Views are the sources of what is shown.
	Views *status.Sources
	// Metrics answers scrapes.
	Metrics http.HandlerFunc
	Events  *events.History
	// Fleet returns the nodes of the fleet; nil means that this node is in none.
	Fleet func(context.Context) ([]fleet.Node, error)
}

// server answers the requests to api.http.
type server struct{ Options }

// Bounds limit what clients of api.http can hold. Many may follow its status page: they get a quarter of the descriptors that
// userspace mode leaves, 256 of 1024 if the process may open 4096. Clients there can't use up those of health checks, files and services.
func Bounds() httpserve.Bounds {
	b := httpserve.Default()
	b.Connections = max(b.Connections, userspace.Reserve()/4)
	return b
}

// Handler returns the handler of api.http: the status page, metrics and health, nothing that changes anything.
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
	// Reasons say why not; empty where it is.
	Reasons []string `json:"reasons"`
	// Problems are those of the host, which may keep traffic away though all is applied; /readyz has them.
	Problems []string `json:"problems,omitempty"`
	Mode     string   `json:"mode"`
	// Revision is the store's that is applied.
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

// patience is how long a change may wait to be applied, besides sync.min_interval, before the daemon counts as unhealthy.
const patience = time.Minute

// unhealthy says which loop is stuck, or what has waited too long. Frontends in backoff are separate problems.
func (srv server) unhealthy() []string {
	var reasons []string
	if stuck := srv.Views.Engine.Working(); stuck > patience {
		reasons = append(reasons, fmt.Sprintf("the engine has made no progress for %s", stuck.Round(time.Second)))
	}
	if stuck := srv.Views.Model.Waiting(); stuck > patience {
		reasons = append(reasons, fmt.Sprintf("a change has not been compiled for %s", stuck.Round(time.Second)))
	}
	if since := srv.Views.Engine.Behind(); !since.IsZero() && time.Since(since) > patience+srv.Views.Config.Sync.MinInterval {
		reasons = append(reasons, overdue(time.Since(since), srv.Views.Engine.Status().LastError))
	}
	return reasons
}

// overdue says for how long what is wanted was not applied, and what the last round failed at.
func overdue(behind time.Duration, last string) string {
	text := fmt.Sprintf("changes have not been applied for %s", behind.Round(time.Second))
	if last != "" {
		text += ": " + last
	}
	return text
}
