package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // for the embedded files below
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/rates"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd/fleet"
)

// html is the content of page.html.
//
//go:embed page.html
var html string

// style is the content of style.css.
//
//go:embed style.css
var style string

// script is the content of script.js.
//
//go:embed script.js
var script string

// Options configures the content of a Page.
type Options struct {
	// Status and Traffic return the current state. Events returns the latest events in order.
	Status  func() api.Status
	Traffic func() api.Traffic
	Events  func() []events.Event
	// Keys returns the keys that serve a service.
	Keys func(balancer.Name) []balancer.Key
	// Fleet returns the nodes of the fleet. It is nil if this node does not belong to a fleet.
	Fleet func(context.Context) ([]fleet.Node, error)
}

// Page answers requests for the status page. It is safe for concurrent use.
type Page struct {
	o        Options
	template *template.Template
	policy   string

	mu     sync.Mutex // held while content is generated, because readers share it
	window rates.Window
	status api.Status
	at     time.Time                // when window and status were read
	until  time.Time                // when window and status expire
	made   map[balancer.Name][]byte // content for followers by service; "" means the node

	asking sync.Mutex // held instead of mu while etcd is read, so other pages do not wait for etcd
	fleet  nodes      // the last result, which mu also guards for readers
}

// nodes holds the fleet's nodes in etcd.
type nodes struct {
	all   []fleet.Node
	err   error
	until time.Time // when the result expires
}

const (
	// fresh is the minimum lifetime of content. If generating the content is slow, the lifetime is
	// its duration multiplied by share.
	fresh, share = 2 * time.Second, 20
	// maxServices and maxEvents are the maximum numbers of listed services and events.
	maxServices, maxEvents = 200, 30
	// fleetPage is the page of all nodes. No service can have this name.
	fleetPage = "/fleet"
	// fleetTime is the timeout for listing the nodes in etcd.
	fleetTime = 700 * time.Millisecond
)

// New returns a page whose content is first generated when it is requested.
func New(o Options) *Page {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	functions := template.FuncMap{
		"spark": func(past []float32) string { return rates.Spark(past, 20) }, "use": useClass, "weight": levelClass,
		"here": readyClass, "since": func(t time.Time) string { return time.Since(t).Round(time.Second).String() },
		"count": wording.Count[int],
	}
	return &Page{
		o: o, template: template.Must(template.New("").Funcs(functions).Parse(html)), made: map[balancer.Name][]byte{},
		policy: "default-src 'none'; style-src " + hash(style) + "; script-src " + hash(script) +
			"; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	}
}

// Register adds the pages to mux.
func (p *Page) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { p.show(w, r, "") })
	if p.o.Fleet != nil {
		mux.HandleFunc("GET "+fleetPage, func(w http.ResponseWriter, r *http.Request) { p.show(w, r, fleetPage) })
	}
	mux.HandleFunc("GET /services/{name}", func(w http.ResponseWriter, r *http.Request) { p.show(w, r, balancer.Name(r.PathValue("name"))) })
	mux.HandleFunc("GET /live", p.follow)
}

// view is the input of the templates.
type view struct {
	Name          balancer.Name // the service's name; "" means the node, and fleetPage the fleet
	Fleet         bool          // set if this node belongs to a fleet
	Nodes         []fleet.Node
	Error         error          // the reason why Nodes is empty
	Keys          []balancer.Key // of the service
	Status        api.Status
	At            time.Time
	Rows          []rates.Row
	More          int // number of omitted services
	Problems      []balancer.Problem
	Events        []events.Event
	Style, Script any
}

// viewLocked returns the current content of a page, and reports whether the page exists.
func (p *Page) viewLocked(name balancer.Name) (view, bool) {
	if began := time.Now(); !began.Before(p.until) {
		p.window.Add(p.o.Traffic())
		p.status, p.at = p.o.Status(), began
		p.until = time.Now().Add(max(fresh, share*time.Since(began)))
		clear(p.made)
	}
	v := view{Name: name, Status: p.status, At: p.at, Style: template.CSS(style), Script: template.JS(script), Fleet: p.o.Fleet != nil}
	switch name {
	case fleetPage:
		v.Nodes, v.Error = p.fleet.all, p.fleet.err
		return v, v.Fleet
	case "":
		v.Rows = p.window.Services()
		if v.More = len(v.Rows) - maxServices; v.More > 0 {
			slices.SortStableFunc(v.Rows, func(a, b rates.Row) int { return cmp.Compare(b.New, a.New) })
			v.Rows = v.Rows[:maxServices]
		}
		v.More = max(v.More, 0)
		v.Events = p.o.Events()
		v.Events = v.Events[max(0, len(v.Events)-maxEvents):]
		slices.Reverse(v.Events)
		return v, true
	}
	v.Rows, v.Keys = p.window.Endpoints(name), p.o.Keys(name)
	for _, problem := range p.status.Problems {
		if problem.Service == name {
			v.Problems = append(v.Problems, problem)
		}
	}
	return v, slices.ContainsFunc(p.window.Last().Services, func(s api.ServiceTraffic) bool { return s.Name == name })
}

// prepare reads the nodes from etcd if the page shows them. It uses the last result, or the last
// error, if it is recent.
func (p *Page) prepare(ctx context.Context, name balancer.Name) {
	if name != fleetPage || p.o.Fleet == nil {
		return
	}
	p.asking.Lock()
	defer p.asking.Unlock()
	if time.Now().Before(p.fleet.until) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, fleetTime)
	defer cancel()
	all, err := p.o.Fleet(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fleet = nodes{all, err, time.Now().Add(fresh)}
	delete(p.made, fleetPage)
}

func (p *Page) show(w http.ResponseWriter, r *http.Request, name balancer.Name) {
	p.prepare(r.Context(), name)
	p.mu.Lock()
	v, found := p.viewLocked(name)
	var out bytes.Buffer
	err := p.template.ExecuteTemplate(&out, "page", v)
	p.mu.Unlock()
	switch {
	case !found:
		http.Error(w, fmt.Sprintf("there is no service %q", name), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(out.Bytes()) // fails only if the reader has disconnected
}

// message returns the content of a page as a Server-Sent Event, and when it was generated. All
// followers share it. It returns nil if the page does not exist.
func (p *Page) message(ctx context.Context, name balancer.Name) ([]byte, time.Time) {
	p.prepare(ctx, name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.made[name]; m != nil && time.Now().Before(p.until) {
		return m, p.at
	}
	v, found := p.viewLocked(name)
	var out bytes.Buffer
	if err := p.template.ExecuteTemplate(&out, "content", v); err != nil || !found {
		return nil, p.at
	}
	text, _ := json.Marshal(out.String()) // encoding a string never fails
	p.made[name] = slices.Concat([]byte("data: "), text, []byte("\n\n"))
	return p.made[name], p.at
}

// follow answers with the content of a page at intervals, until the reader disconnects.
func (p *Page) follow(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	again := time.NewTicker(fresh)
	defer again.Stop()
	var last time.Time
	for {
		message, made := p.message(r.Context(), balancer.Name(r.URL.Query().Get("of")))
		if message == nil {
			return
		}
		if made != last {
			last = made
			if _, err := w.Write(message); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-again.C:
		}
	}
}

// useClass returns the CSS class of a row's state. A service's state is only bad if no port has an
// endpoint in use.
func useClass(r rates.Row) string {
	switch {
	case r.Endpoint == nil && r.Use.None(), r.Endpoint != nil && r.Endpoint.State == balancer.Down:
		return "bad"
	case r.Up < r.Of:
		return "notice"
	}
	return "good"
}

// readyClass returns the CSS class of a node's state in the fleet.
func readyClass(n fleet.Node) string {
	switch n.Ready() {
	case fleet.NodeReady:
		return "good"
	case fleet.NodeStarting:
		return "notice"
	}
	return "bad"
}

func levelClass(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "bad"
	case l >= slog.LevelWarn:
		return "notice"
	}
	return ""
}
