package metrics

import (
	"bufio"
	"cmp"
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

// ServeHTTP answers a scrape in Prometheus' text format. The series of services and endpoints are written straight from a view: with
// 10,000 services of ten endpoints the registry takes 2 s of a processor for them, most of it to sort and check what is in order.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	families, err := m.registry.Gather()
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
	v := m.Views.Look()
	all := m.seriesOfServices(v)
	m.writeServices(out, all)
	m.writePorts(out, all)
	if m.PerEndpoint {
		m.writeEndpoints(out, all)
	}
	_ = out.Flush() // fails where the caller has gone
}

// metric is a metric with its help and type.
type metric struct{ name, help, kind string }

func (f *metric) begin(out *bufio.Writer) {
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

// serviceSeries is what is shown of one service.
type serviceSeries struct {
	name balancer.Name
	// known: it is defined. What is counted may be of one that is gone.
	known     bool
	ports     []dataplane.FrontendCount
	udp       map[string]bool // ports, by their names
	states    map[balancer.BackendState]int
	endpoints []endpointSeries // where they are shown
}

// endpointSeries is what is shown of one endpoint of a service, at whichever of its ports.
type endpointSeries struct {
	labels string // as in the text format
	// known: the service has it, or it drains; up is for those. What is counted may be of one that is gone.
	known, up bool
	// counted: something tells of it. Several ports may share it.
	counted bool
	// unanswered are its failures at the ports of TCP and SCTP.
	unanswered uint64
	dataplane.BackendCount
}

// seriesOfServices collects what is shown of services, in order. None of the labels' values has a character that the format escapes.
func (m *Metrics) seriesOfServices(v *status.View) []*serviceSeries {
	of := map[balancer.Name]*serviceSeries{}
	for port, f := range v.Counts() {
		if of[port.Service] == nil {
			of[port.Service] = &serviceSeries{name: port.Service}
		}
		of[port.Service].ports = append(of[port.Service].ports, f)
	}
	at := map[netip.AddrPort]int{} // where those of a service are
	for name, s := range v.State.Snapshot.Services.All() {
		x := of[name]
		if x == nil {
			x = &serviceSeries{name: name}
			of[name] = x
		}
		x.known, x.states = true, map[balancer.BackendState]int{balancer.Active: 0} // for alerts at 0
		for _, p := range s.Ports {
			if p.Protocol == balancer.UDP {
				if x.udp == nil {
					x.udp = map[string]bool{}
				}
				x.udp[p.Name] = true
			}
		}
		clear(at)
		for _, e := range v.EndpointsOf(s) {
			x.states[e.State]++
			if a, err := netip.ParseAddrPort(e.Address); err == nil && m.PerEndpoint {
				n := x.endpoint(a, at)
				n.known, n.up = true, e.Health != balancer.HealthDown
			}
		}
	}
	all := slices.SortedFunc(maps.Values(of), func(a, b *serviceSeries) int { return cmp.Compare(a.name, b.name) })
	if m.PerEndpoint {
		for _, x := range all {
			x.count(at)
		}
	}
	return all
}

// endpoint returns the series of the endpoint with an address, the same each time; at says where those of the service are.
func (x *serviceSeries) endpoint(a netip.AddrPort, at map[netip.AddrPort]int) *endpointSeries {
	i, there := at[a]
	if !there {
		i = len(x.endpoints)
		at[a] = i
		x.endpoints = append(x.endpoints, endpointSeries{
			labels: `{endpoint="` + a.String() + `",service="` + string(x.name) + `"}`, BackendCount: dataplane.BackendCount{Backend: a},
		})
	}
	return &x.endpoints[i]
}

// count adds what was counted of the service's endpoints, of which several ports may share one.
func (x *serviceSeries) count(at map[netip.AddrPort]int) {
	clear(at)
	for i := range x.endpoints {
		at[x.endpoints[i].Backend] = i
	}
	for _, f := range x.ports {
		for _, b := range f.Backends {
			n := x.endpoint(b.Backend, at)
			n.Connections, n.Active, n.Failures = n.Connections+b.Connections, n.Active+b.Active, n.Failures+b.Failures
			n.counted = true
			if !x.udp[f.Port] {
				n.unanswered += b.Failures
			}
		}
	}
}

// writeServices writes the series of services. Counters begin at 0, for increase() does not see the first count of a series that
// begins with it.
func (m *Metrics) writeServices(out *bufio.Writer, all []*serviceSeries) {
	for _, c := range []struct {
		metric
		*serviceCount
	}{
		{metric{"vipd_drains_total", "Drains of endpoints that began.", "counter"}, &m.drained},
		{metric{"vipd_ejections_total", "Endpoints that were ejected, as connects to them failed.", "counter"}, &m.ejections},
		{metric{"vipd_panics_total", "Panics that began: so few endpoints were healthy that all were used.", "counter"}, &m.panicked},
	} {
		c.begin(out)
		for _, x := range all {
			if x.known {
				writeSeries(out, c.name, `{service="`+string(x.name)+`"}`, c.at(x.name))
			}
		}
	}
	f := metric{"vipd_endpoints", "Endpoints, by service and state.", "gauge"}
	f.begin(out)
	for _, x := range all {
		for _, state := range slices.Sorted(maps.Keys(x.states)) {
			writeSeries(out, f.name, `{service="`+string(x.name)+`",state="`+string(state)+`"}`, uint64(x.states[state]))
		}
	}
}

// writePorts writes what was counted of the ports of services.
func (m *Metrics) writePorts(out *bufio.Writer, all []*serviceSeries) {
	_, dials := m.Views.Counters.DialRetries() // where the kernel connects, there is no word of connects that fail
	for _, f := range []struct {
		metric
		first string // of the labels
		there bool
		value func(*dataplane.FrontendCount) uint64
	}{
		{metric{"vipd_service_bytes_total", "Bytes from (in) and to (out) clients.", "counter"}, `direction="in",`, true,
			func(f *dataplane.FrontendCount) uint64 { return f.In }},
		{metric{name: "vipd_service_bytes_total"}, `direction="out",`, true,
			func(f *dataplane.FrontendCount) uint64 { return f.Out }},
		{metric{"vipd_service_connect_failures_total", "Connects to endpoints that failed, in userspace mode.", "counter"}, "", dials,
			func(f *dataplane.FrontendCount) uint64 { return f.Failures }},
		{metric{"vipd_service_connections_total", "Connections and UDP flows of clients.", "counter"}, "", true,
			func(f *dataplane.FrontendCount) uint64 { return f.Connections }},
	} {
		if !f.there {
			continue
		}
		if f.kind != "" {
			f.begin(out)
		}
		for _, x := range all {
			for i := range x.ports {
				p := &x.ports[i]
				writeSeries(out, f.name, `{`+f.first+`port="`+p.Port+`",service="`+string(x.name)+`"}`, f.value(p))
			}
		}
	}
}

// writeEndpoints writes the series of endpoints, with what was counted of them.
func (m *Metrics) writeEndpoints(out *bufio.Writer, all []*serviceSeries) {
	_, dials := m.Views.Counters.DialRetries()
	for _, f := range []struct {
		metric
		value func(*endpointSeries) (n uint64, there bool)
	}{
		{metric{"vipd_endpoint_active_connections", "Live connections and UDP flows of an endpoint.", "gauge"},
			func(x *endpointSeries) (uint64, bool) { return x.Active, x.counted }},
		{metric{"vipd_endpoint_connect_failures_total", "Connects to an endpoint that failed, in userspace mode.", "counter"},
			func(x *endpointSeries) (uint64, bool) { return x.Failures, x.counted && dials }},
		{metric{"vipd_endpoint_connections_total", "Connections and UDP flows given to an endpoint.", "counter"},
			func(x *endpointSeries) (uint64, bool) { return x.Connections, x.counted }},
		{metric{"vipd_endpoint_unanswered_total", "New connections (TCP and SCTP) that an endpoint did not answer; in userspace mode, connects to it that failed.", "counter"},
			func(x *endpointSeries) (uint64, bool) { return x.unanswered, x.counted }},
		{metric{"vipd_endpoint_up", "0 for an endpoint that its health checks find down, else 1: also where it is not checked yet, has no checks, or can't be checked.", "gauge"},
			func(x *endpointSeries) (uint64, bool) { return uint64(oneIf(x.up)), x.known }},
	} {
		f.begin(out)
		for _, x := range all {
			for i := range x.endpoints {
				if n, there := f.value(&x.endpoints[i]); there {
					writeSeries(out, f.name, x.endpoints[i].labels, n)
				}
			}
		}
	}
}

// writeSeries writes a line of the text format; what fails is seen at the end, by Flush.
func writeSeries(out *bufio.Writer, name, labels string, n uint64) {
	_, _ = out.WriteString(name)
	_, _ = out.WriteString(labels)
	_ = out.WriteByte(' ')
	_, _ = out.Write(strconv.AppendUint(out.AvailableBuffer(), n, 10))
	_ = out.WriteByte('\n')
}
