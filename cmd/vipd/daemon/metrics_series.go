package daemon

import (
	"bufio"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/common/expfmt"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/dataplane"
)

// serveMetrics answers a scrape in Prometheus' text format. The series of endpoints are written straight from a view: with 10,000
// services of ten endpoints the registry takes 1.8 s of a processor for them, most of it to sort and check what is in order.
func (d *Daemon) serveMetrics(w http.ResponseWriter, r *http.Request) {
	families, err := d.metrics.registry.Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	var to io.Writer = w
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		packed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // fails for other levels
		defer func() { _ = packed.Close() }()
		to = packed
	}
	out := bufio.NewWriter(to)
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(out, f); err != nil {
			return // the caller has gone
		}
	}
	v := d.views.Look()
	endpoints := d.writeServices(out, v)
	if d.config.Metrics.PerEndpoint {
		d.writeEndpoints(out, v, endpoints)
	}
	_ = out.Flush() // fails where the caller has gone
}

// family is a metric with its help and type.
type family struct{ name, help, kind string }

func (f *family) begin(out *bufio.Writer) {
	_, _ = out.WriteString("# HELP " + f.name + " " + f.help + "\n# TYPE " + f.name + " " + f.kind + "\n")
}

// serviceCount counts something of services. Its zero value is ready.
type serviceCount struct {
	mu sync.Mutex
	of map[balancer.Name]uint64
}

func (c *serviceCount) add(service balancer.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[balancer.Name]uint64{}
	}
	c.of[service]++
}

func (c *serviceCount) at(service balancer.Name) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[service]
}

// endpointSeries is what is shown of one endpoint of a service, at whichever of its ports.
type endpointSeries struct {
	labels string // as in the text format
	// known: the service has it, or it drains; up is for those. What is counted may be of one that is gone.
	known, up bool
	dataplane.BackendCount
}

// writeServices writes the series of services that are no counts of connections, and returns what is known of their endpoints. None
// of the labels' values, there and here, has a character that the format escapes. Counters begin at 0, for increase() does not see
// the first count of a series that begins with it.
func (d *Daemon) writeServices(out *bufio.Writer, v *status.View) map[balancer.Target]*endpointSeries {
	for _, c := range []struct {
		family
		*serviceCount
	}{
		{family{"vipd_drains_total", "Drains of endpoints that began.", "counter"}, &d.metrics.drained},
		{family{"vipd_ejections_total", "Endpoints that were ejected, as connects to them failed.", "counter"}, &d.metrics.ejections},
		{family{"vipd_panics_total", "Panics that began: so few endpoints were healthy that all were used.", "counter"}, &d.metrics.panicked},
	} {
		c.begin(out)
		for service := range v.State.Snapshot.Services.All() {
			writeSeries(out, c.name, `{service="`+string(service)+`"}`, c.at(service))
		}
	}
	f := family{"vipd_endpoints", "Endpoints, by service and state.", "gauge"}
	f.begin(out)
	endpoints := map[balancer.Target]*endpointSeries{}
	for service, s := range v.State.Snapshot.Services.All() {
		states := map[balancer.BackendState]int{balancer.Active: 0} // for alerts at 0
		for _, e := range v.EndpointsOf(s) {
			states[e.State]++
			if at, err := netip.ParseAddrPort(e.Address); err == nil && d.config.Metrics.PerEndpoint {
				x := seriesOf(endpoints, service, at)
				x.known, x.up = true, e.Health != balancer.HealthDown
			}
		}
		for _, state := range slices.Sorted(maps.Keys(states)) {
			writeSeries(out, f.name, `{service="`+string(service)+`",state="`+string(state)+`"}`, uint64(states[state]))
		}
	}
	return endpoints
}

// writeEndpoints writes the series of endpoints, with what was counted of them.
func (d *Daemon) writeEndpoints(out *bufio.Writer, v *status.View, endpoints map[balancer.Target]*endpointSeries) {
	for key, f := range v.Counts() {
		for _, b := range f.Backends { // an endpoint may serve several ports
			x := seriesOf(endpoints, key.Service, b.Backend)
			x.Connections, x.Active, x.Failures = x.Connections+b.Connections, x.Active+b.Active, x.Failures+b.Failures
			x.Backend = b.Backend
		}
	}
	_, dials := d.counters.DialRetries()
	sorted := slices.SortedFunc(maps.Values(endpoints), func(a, b *endpointSeries) int { return strings.Compare(a.labels, b.labels) })
	for _, f := range []struct {
		family
		value func(*endpointSeries) (n uint64, there bool)
	}{
		{family{"vipd_endpoint_active_connections", "Live connections and UDP flows of an endpoint.", "gauge"},
			func(x *endpointSeries) (uint64, bool) { return x.Active, x.Backend.IsValid() }},
		{family{"vipd_endpoint_connect_failures_total", "Connects to an endpoint that failed, in userspace mode.", "counter"},
			func(x *endpointSeries) (uint64, bool) { return x.Failures, x.Backend.IsValid() && dials }},
		{family{"vipd_endpoint_connections_total", "Connections and UDP flows given to an endpoint.", "counter"},
			func(x *endpointSeries) (uint64, bool) { return x.Connections, x.Backend.IsValid() }},
		{family{"vipd_endpoint_up", "0 for an endpoint that its health checks find down, else 1: also where it is not checked yet, has no checks, or can't be checked.", "gauge"},
			func(x *endpointSeries) (uint64, bool) { return uint64(oneIf(x.up)), x.known }},
	} {
		f.begin(out)
		for _, x := range sorted {
			if n, there := f.value(x); there {
				writeSeries(out, f.name, x.labels, n)
			}
		}
	}
}

// seriesOf returns those of an endpoint, the same each time.
func seriesOf(all map[balancer.Target]*endpointSeries, service balancer.Name, at netip.AddrPort) *endpointSeries {
	t := balancer.Target{Service: service, Addr: at.Addr(), Port: at.Port()}
	x := all[t]
	if x == nil {
		x = &endpointSeries{labels: `{endpoint="` + at.String() + `",service="` + string(service) + `"}`}
		all[t] = x
	}
	return x
}

// writeSeries writes a line of the text format; what fails is seen at the end, by Flush.
func writeSeries(out *bufio.Writer, name, labels string, n uint64) {
	_, _ = out.WriteString(name)
	_, _ = out.WriteString(labels)
	_ = out.WriteByte(' ')
	_, _ = out.Write(strconv.AppendUint(out.AvailableBuffer(), n, 10))
	_ = out.WriteByte('\n')
}
