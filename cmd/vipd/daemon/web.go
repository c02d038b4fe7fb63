package daemon

import (
	"fmt"
	"net/http"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/page"
)

// webHandler returns the handler of api.http: the status page, metrics and health, nothing that changes anything.
func (d *Daemon) webHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", d.serveMetrics)
	mux.HandleFunc("GET /healthz", d.check(d.unhealthy, nil))
	mux.HandleFunc("GET /readyz", d.check(func() []string { return d.views.Look().Unready() }, d.hostProblems))
	o := page.Options{
		Status:  func() api.Status { return d.views.Look().Status() },
		Traffic: func() api.Traffic { return d.views.Look().Traffic(func(balancer.Name) bool { return true }) },
		Events: func() []events.Event {
			all, _ := d.events.Read(0, 0)
			return all
		},
		Keys: func(name balancer.Name) []balancer.Key { return d.views.Look().Keys(name) },
	}
	if d.fleet != nil {
		o.Fleet = d.fleet.Nodes
	}
	page.New(o).Register(mux)
	return onlyOwnNames(fewFollowers(mux, webBounds()), d.ownNames())
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

func (d *Daemon) check(reasons func() []string, problems func() []balancer.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		v := verdict{Reasons: append([]string{}, reasons()...), Mode: string(d.modeSwitch.Serving().Name), Revision: d.engine.Status().Applied.Store}
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
		answer(w, v)
	}
}

// patience is how long a change may wait to be applied, besides sync.min_interval, before the daemon counts as unhealthy.
const patience = time.Minute

// unhealthy says which loop is stuck, or what has waited too long. Frontends in backoff are separate problems.
func (d *Daemon) unhealthy() []string {
	var reasons []string
	if stuck := d.engine.Working(); stuck > patience {
		reasons = append(reasons, fmt.Sprintf("the engine has made no progress for %s", stuck.Round(time.Second)))
	}
	if stuck := d.model.Waiting(); stuck > patience {
		reasons = append(reasons, fmt.Sprintf("a change has not been compiled for %s", stuck.Round(time.Second)))
	}
	if since := d.engine.Behind(); !since.IsZero() && time.Since(since) > patience+d.config.Sync.MinInterval {
		reasons = append(reasons, overdue(time.Since(since), d.engine.Status().LastError))
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
