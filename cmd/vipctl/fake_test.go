package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/dataplane/explain"
	"vipd/dataplane/realserver"
)

// fakeDaemon is a daemon that answers the API with values that a script can change. It stores
// overrides, but never ends connections itself.
type fakeDaemon struct {
	server *http.Server

	mu               sync.Mutex
	status           api.Status
	services         []api.Service
	frontends        []api.Frontend
	conns            []api.Connection
	diff             []api.Difference
	reload           api.Reload
	events           []api.Event
	missed           uint64 // number of events lost before the first page that a follower reads
	check            api.CheckResult
	traffic          []api.Traffic // consecutive answers; the last is repeated
	overrideRequests []api.OverrideRequest
	overrides        []api.OverrideTarget
	pending          *api.PendingText // nil means that the caller may not read it
	aborts           int
	changed          chan struct{} // closed and replaced at each change
}

// serveFake starts a fake daemon that listens at socket until stop is called.
func serveFake(socket string) (d *fakeDaemon, stop func(), err error) {
	d = &fakeDaemon{changed: make(chan struct{})}
	d.fill()
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	answer := func(path string, value func() any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { d.answer(w, r, value) })
	}
	answer("/v1/status", func() any { return d.status })
	answer("/v1/services", func() any { return d.services })
	answer("/v1/endpoints", func() any { return d.endpoints() })
	answer("/v1/traffic", d.nextTraffic)
	answer("/v1/frontends", func() any { return d.frontends })
	answer("/v1/diff", func() any { return d.diff })
	mux.HandleFunc("GET /v1/connections", d.connections)
	mux.HandleFunc("POST /v1/connections/kill", func(w http.ResponseWriter, r *http.Request) {
		d.answer(w, r, func() any { return api.Killed{Connections: 2} })
	})
	answer("/v1/explain", func() any { return explained() })
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) { d.answer(w, r, func() any { return d.reload }) })
	mux.HandleFunc("GET /v1/pending", func(w http.ResponseWriter, r *http.Request) {
		if d.pending == nil {
			http.Error(w, "only root may", http.StatusForbidden)
			return
		}
		d.answer(w, r, func() any { return d.pending })
	})
	mux.HandleFunc("POST /v1/pending/abort", func(w http.ResponseWriter, r *http.Request) {
		d.answer(w, r, func() any { d.aborts++; return d.reload })
	})
	mux.HandleFunc("POST /v1/overrides", d.override)
	mux.HandleFunc("GET /v1/overrides", func(w http.ResponseWriter, r *http.Request) {
		d.answer(w, r, func() any { return api.OverrideResult{Targets: d.overrides} })
	})
	mux.HandleFunc("GET /v1/events", d.journal)
	mux.HandleFunc("POST /v1/check", d.checkNow)
	mux.HandleFunc("POST /v1/check-direct", checkDirectPaths)
	d.server = &http.Server{Handler: mux}
	var serving sync.WaitGroup
	serving.Go(func() { _ = d.server.Serve(l) })
	return d, func() { _ = d.server.Close(); serving.Wait() }, nil
}

// nextTraffic removes and returns the first element of traffic, unless it is the last.
func (d *fakeDaemon) nextTraffic() any {
	t := d.traffic[0]
	if len(d.traffic) > 1 {
		d.traffic = d.traffic[1:]
	}
	return t
}

func (d *fakeDaemon) answer(w http.ResponseWriter, r *http.Request, value func() any) {
	for {
		d.mu.Lock()
		text, err := json.Marshal(value())
		changed := d.changed
		d.mu.Unlock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(append(text, '\n'))
		if r.URL.Query().Get("watch") == "" {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// journal answers with the events. If the request has the parameter follow, it continues with new
// events.
func (d *fakeDaemon) journal(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	since, err := strconv.ParseUint(q.Get("since"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	follow := q.Get("follow") != ""
	for {
		d.mu.Lock()
		page, changed := api.EventPage{Events: []api.Event{}, Next: since}, d.changed
		for _, e := range d.events {
			if e.Seq > since {
				page.Next = e.Seq
				if (q.Get("service") == "" || q.Get("service") == string(e.Service)) && (q.Get("kind") == "" || slices.Contains(strings.Split(q.Get("kind"), ","), string(e.Kind))) {
					page.Events = append(page.Events, e)
				}
			}
		}
		if follow {
			page.Missed, d.missed = d.missed, 0
		}
		d.mu.Unlock()
		since = page.Next
		_ = json.NewEncoder(w).Encode(page)
		if !follow {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

// checkNow answers with one service's check result, and with an error for any other service.
func (d *fakeDaemon) checkNow(w http.ResponseWriter, r *http.Request) {
	var q api.CheckRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.Service != d.check.Service {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(api.Error{Message: "service " + string(q.Service) + " has no health check"})
		return
	}
	_ = json.NewEncoder(w).Encode(d.check)
}

// checkDirectPaths answers with a path that works. If the request is for all services, the answer
// also contains a path that fails.
func checkDirectPaths(w http.ResponseWriter, r *http.Request) {
	var q api.DirectRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	vip, _ := balancer.ParseKey("10.96.0.10:80/tcp") // the key is valid
	paths := []api.DirectPath{{
		Service: "web", Frontend: vip, Endpoint: netip.MustParseAddr("192.168.1.11"),
		Findings: []realserver.Finding{{OK: true, Text: "it accepts connections to 10.96.0.10:80"}},
	}}
	if q.Service == "" {
		paths = append(paths, api.DirectPath{
			Service: "db", Frontend: vip, Endpoint: netip.MustParseAddr("192.168.1.12"), Findings: []realserver.Finding{{Text: "it does not answer ARP on eth0"}},
		})
	}
	_ = json.NewEncoder(w).Encode(paths)
}

// change calls edit, which changes the state, and sends the new state to followers.
func (d *fakeDaemon) change(edit func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	edit()
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *fakeDaemon) endpoints() []api.Endpoint {
	out := []api.Endpoint{}
	for _, s := range d.services {
		out = append(out, s.Endpoints...)
	}
	return out
}

// explained returns the explanation that the fake gives for every connection.
func explained() api.Explanation {
	client := netip.MustParseAddr("10.0.0.7")
	return api.Explanation{
		Answer: explain.Answer{
			Client: client, To: balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: balancer.TCP}, Verdict: explain.Dropped,
			Summary: "dropped: 10.0.0.7 may not connect to web",
			Steps: []explain.Step{
				{What: "address", Text: "10.96.0.10 is a VIP that vipd holds on vipd0"}, {What: "source", Text: "10.0.0.7 is not in source_ranges [10.1.0.0/16]", Wrong: true},
			},
		},
		Live: &api.Live{
			Client: netip.MustParseAddrPort("10.0.0.1:51234"), Endpoint: netip.MustParseAddrPort("192.168.1.11:8080"), State: "established",
			Connected: 1234567, Taken: 2345678,
		},
	}
}

func (d *fakeDaemon) connections(w http.ResponseWriter, r *http.Request) {
	q, err := api.ParseConnectionQuery(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.answer(w, r, func() any {
		return slices.DeleteFunc(append([]api.Connection{}, d.conns...), func(c api.Connection) bool { return !q.Matches(&c) })
	})
}

// override changes overrides of endpoints as the daemon does. If no endpoint matches the request,
// it answers with an error.
func (d *fakeDaemon) override(w http.ResponseWriter, r *http.Request) {
	var q api.OverrideRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var result api.OverrideResult
	d.change(func() {
		d.overrideRequests = append(d.overrideRequests, q)
		for i := range d.services {
			for j := range d.services[i].Endpoints {
				e := &d.services[i].Endpoints[j]
				if q.Node != "" && e.Node != q.Node || q.Node == "" && (e.Service != q.Service || q.Address != e.Place() && !isAt(e.Address, q.Address) && (e.Name == "" || e.Name != q.Address)) {
					continue
				}
				weight := q.Weight
				if weight == nil && e.Override != nil {
					weight = e.Override.Weight
				}
				e.Override = &balancer.Override{Weight: weight, Draining: q.Draining, By: q.By, Reason: q.Reason}
				if q.Timeout > 0 {
					e.Override.Until = time.Now().Add(q.Timeout)
				}
				switch {
				case q.Draining != nil && *q.Draining:
					e.State, e.Weight = balancer.Draining, 0
				case q.Draining != nil:
					if e.State, e.Weight = balancer.Active, e.Configured; weight == nil {
						e.Override = nil
					}
				}
				at := netip.MustParseAddrPort(e.Address).Addr().String()
				result.Targets = append(result.Targets, api.OverrideTarget{Service: e.Service, Address: at, Override: e.Override})
			}
		}
	})
	if len(result.Targets) == 0 {
		message := "service " + string(q.Service) + " has no endpoint " + q.Address
		if q.Node != "" {
			message = fmt.Sprintf("no endpoint is on node %q", q.Node)
		}
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(api.Error{Message: message})
		return
	}
	_ = json.NewEncoder(w).Encode(result)
}

// fill defines a node with two services, one of them with every kind of problem. The age of each
// timestamp is 20 s more than a round number, so its text does not change during a test.
func (d *fakeDaemon) fill() {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	key := func(text string) balancer.Key {
		k, err := balancer.ParseKey(text)
		if err != nil {
			panic(err)
		}
		return k
	}
	weight := 3
	problem := balancer.Problem{
		Severity: balancer.SeverityNearest, Origin: balancer.Origin{File: "/etc/vipd/services/web.toml", Line: 9}, Service: "web",
		Field: "scheduler", Text: "iptables mode can't do lc; it uses random instead",
	}
	checkUp := &api.Check{
		At: "192.168.1.11:8080", Type: balancer.HTTPHealth, Since: ago(50*time.Hour + 20*time.Second), Needed: 3, Against: 1,
		Last: ago(2*time.Hour + 20*time.Second), LastOutcome: "failed", LastText: "no answer", Checking: true,
	}
	d.services = []api.Service{
		{
			Name: "dns", Origin: balancer.Origin{File: "/etc/vipd/vipd.toml", Line: 20},
			Definition: map[string]any{
				"vips":      []any{"10.96.0.53"},
				"ports":     []any{map[string]any{"port": 53, "protocol": "udp"}},
				"endpoints": []any{map[string]any{"address": "192.168.1.21"}},
			},
			VIPs:      []string{"10.96.0.53"},
			Ports:     []api.Port{{Port: 53, Protocol: balancer.UDP, TargetPort: 53, Up: 1, Of: 1, Connections: 4}},
			Endpoints: []api.Endpoint{{Service: "dns", Address: "192.168.1.21:53", Name: "ns1.example.org", Configured: 1, Weight: 1, State: balancer.Active, Connections: 4}},
			Frontends: []api.Frontend{{
				Key: key("10.96.0.53:53/udp"), Service: "dns", Scheduler: balancer.WeightedRoundRobin, State: "applied",
				Backends: []api.Backend{{Address: "192.168.1.21:53", State: balancer.Active, Weight: 1}},
			}},
		},
		{
			Name: "web", Origin: balancer.Origin{File: "/etc/vipd/services/web.toml", Line: 2},
			Definition: map[string]any{
				"vips":      []any{"10.96.0.10", "fd00:96::10"},
				"ports":     []any{map[string]any{"name": "http", "port": 80, "target_port": 8080}, map[string]any{"name": "https", "port": 443}},
				"endpoints": []any{map[string]any{"address": "192.168.1.11", "weight": 2, "node": "rack1"}, map[string]any{"address": "192.168.1.12"}},
				"scheduler": "lc", "affinity": "client_ip", "affinity_timeout": "1h",
				"health": map[string]any{"type": "http", "path": "/healthz", "expect": "a \"b\" \\ c"},
			},
			Check: &api.CheckRules{Type: balancer.HTTPHealth, Interval: 2 * time.Second, FastInterval: 500 * time.Millisecond, Timeout: time.Second, Rise: 2, Fall: 3, PanicThreshold: 50},
			VIPs:  []string{"10.96.0.10", "fd00:96::10"},
			Ports: []api.Port{
				{Name: "http", Port: 80, Protocol: balancer.TCP, TargetPort: 8080, NodePort: 30080, Up: 1, Of: 2, Connections: 120, In: 2048, Out: 5 << 20},
				{Name: "https", Port: 443, Protocol: balancer.TCP, TargetPort: 443, Up: 2, Of: 2},
			},
			Endpoints: []api.Endpoint{
				{Service: "web", Address: "192.168.1.11:443", Port: "https", Node: "rack1", Configured: 2, Weight: 3, State: balancer.Active, Override: &balancer.Override{Weight: &weight, By: "ana", Reason: "new machine"}},
				{Service: "web", Address: "192.168.1.11:8080", Port: "http", Node: "rack1", Configured: 2, Weight: 3, State: balancer.Active, Health: balancer.HealthUp, Active: 7, Connections: 100, Override: &balancer.Override{Weight: &weight, By: "ana", Reason: "new machine"}, Check: checkUp},
				{Service: "web", Address: "192.168.1.12:443", Port: "https", Configured: 1, Weight: 1, State: balancer.Active},
				{
					Service: "web", Address: "192.168.1.12:8080", Port: "http", Configured: 1, State: balancer.Down, Health: balancer.HealthDown,
					Cut: true, Connections: 20, Check: &api.Check{
						At: "192.168.1.12:8080", Type: balancer.HTTPHealth, Since: ago(3*time.Hour + 20*time.Second), Needed: 2,
						Last: ago(time.Hour + 20*time.Second), LastOutcome: "failed", LastText: "answered 503 Service Unavailable",
					},
				},
				{Service: "web", Address: "192.168.1.13:8080", Port: "http", State: balancer.Removed, Active: 1, Connections: 5},
			},
			Frontends: []api.Frontend{
				{
					Key: key("10.96.0.10:80/tcp"), Service: "web", Port: "http", Scheduler: balancer.Random, State: "applied",
					Backends: []api.Backend{{Address: "192.168.1.11:8080", State: balancer.Active, Weight: 3}, {Address: "192.168.1.12:8080", State: balancer.Down}},
				},
				{Key: key("[fd00:96::10]:80/tcp"), Service: "web", Port: "http", Scheduler: balancer.Random, State: "failing", Error: "adding the address: no such device"},
			},
			Problems: []balancer.Problem{problem},
		},
	}
	for _, s := range d.services {
		d.frontends = append(d.frontends, s.Frontends...)
	}
	d.status = api.Status{
		Version: "v1.0.0", Node: "gw1", Zone: "a", Started: ago(2*time.Hour + 20*time.Second),
		Mode: api.Mode{
			InUse: "userspace", Wanted: "auto", Reason: "not ipvs: the kernel has no ip_vs; not iptables: this version does not have this mode",
			Detail: "redirect",
		},
		Store: api.Store{Kind: "file", Place: "/etc/vipd/vipd.toml", Connected: true, EverRead: true, Revision: 12},
		Sync:  api.Sync{Wanted: 12, Applied: 12, Last: ago(3*time.Hour + 20*time.Second), LastDuration: 1234 * time.Microsecond, LastChanges: 4, Repairs: 1},
		Ready: true, Services: 2, Frontends: 3, Endpoints: 6, Health: api.HealthCount{Checked: 2, Down: 1},
		Addresses: []api.Address{{Address: "10.96.0.10", Held: "vipd0"}, {Address: "10.96.0.53", Held: "host", Note: "it stays when vipd goes"}, {Address: "fd00:96::10", Held: "none", Note: "no such device"}},
		Problems:  []balancer.Problem{problem, {Severity: balancer.SeverityWarning, Field: "state_dir", Text: "saving state in state_dir: no space left on device"}},
	}
	d.conns = []api.Connection{
		{Frontend: key("10.96.0.10:80/tcp"), Service: "web", Client: netip.MustParseAddrPort("10.0.0.7:51234"), Backend: netip.MustParseAddrPort("192.168.1.11:8080"), State: "established", Since: ago(90*time.Minute + 20*time.Second), In: 300, Out: 1 << 20},
		{Frontend: key("10.96.0.53:53/udp"), Service: "dns", Client: netip.MustParseAddrPort("10.0.0.8:40000"), State: "connecting", Since: ago(25*time.Hour + 20*time.Second)},
	}
	d.reload = api.Reload{Revision: 13, Services: 2}
	d.check = api.CheckResult{
		Service: "web", Address: "192.168.1.12:8080", At: "192.168.1.12:8080", Type: balancer.HTTPHealth, Outcome: "failed",
		Text: "answered 503 Service Unavailable", Took: 1234567, Health: balancer.HealthDown,
		Exchange: "* connected to 192.168.1.12:8080\n> GET /healthz HTTP/1.1\n>\n< HTTP/1.1 503 Service \x1b[31mUnavailable\n",
	}
	past := time.Date(2025, 3, 9, 3, 4, 5, 0, time.UTC)
	d.events = []api.Event{
		{Seq: 1001, At: past, Kind: events.Mode, Text: "userspace mode serves", Cause: "configured"},
		{Seq: 1002, At: past.Add(time.Second), Kind: events.Apply, Level: slog.LevelDebug, Service: "web", Text: "applied, 2 frontends", Took: 3141592, Revision: 12},
		{Seq: 1003, At: past.Add(time.Hour), Kind: events.Health, Level: slog.LevelWarn, Service: "web", Endpoint: "192.168.1.12:8080", Text: "is down", Cause: "answered 503 Service Unavailable", Was: "up", Lasted: 59 * time.Minute},
		{Seq: 1004, At: past.Add(61 * time.Minute), Kind: events.Drain, Service: "gone", Endpoint: "192.168.1.19:8080", Text: "was removed: its drain time has passed, and its remaining connections are cut"},
		{Seq: 1005, At: past.Add(62 * time.Minute), Kind: events.Health, Service: "web", Endpoint: "192.168.1.12:8080", Text: "is up again", Cause: "answered 200 OK", Was: "down", Lasted: 2*time.Minute + 3*time.Second},
		{Seq: 1006, At: past.Add(63 * time.Minute), Kind: events.Store, Text: "etcd is reachable again", Lasted: 1260 * time.Millisecond, Revision: 40},
		{Seq: 1007, At: past.Add(64 * time.Minute), Kind: events.Problem, Level: slog.LevelWarn, Service: "dns", Text: "has a problem", Cause: "line one\nline two"},
	}
}
