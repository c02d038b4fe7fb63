package daemon

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/recorder"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/dataplane"
)

// metrics is what /metrics shows. What happens is counted here; what is so is collected from a view when asked.
type metrics struct {
	registry       *prometheus.Registry
	syncDuration   *prometheus.HistogramVec
	lastSuccess    prometheus.Gauge
	failures       prometheus.Counter
	changes        prometheus.Counter
	programming    prometheus.Histogram
	repairs        prometheus.Counter
	events         prometheus.Counter
	reloadFailures prometheus.Counter
	checks         *prometheus.HistogramVec
	journal        *events.Journal
	// What began, by service:
	ejections, drained, panicked serviceCount
}

var _ dataplane.Metrics = (*metrics)(nil)

func newMetrics(d *Daemon) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), journal: d.journal}
	// From half a millisecond to half a minute: a sync of one frontend, and a full load of ten thousand.
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 17)
	m.syncDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "vipd_sync_duration_seconds", Help: "Time of syncs that had work; full ones compare everything.", Buckets: buckets,
	}, []string{"kind"})
	m.programming = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "vipd_programming_duration_seconds", Help: "Time from seeing a change in the store to having carried it out.", Buckets: buckets,
	})
	m.checks = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "vipd_health_check_duration_seconds", Help: "Time of health checks, by type.", Buckets: buckets,
	}, []string{"type"})
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m.lastSuccess = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vipd_sync_last_success_timestamp_seconds", Help: "When a sync last ended without a failure, in Unix time.",
	})
	m.failures = counter("vipd_sync_failures_total", "Syncs in which something failed.")
	m.changes = counter("vipd_sync_changes_total", "Frontends changed in the dataplane.")
	m.repairs = counter("vipd_drift_repairs_total", "Objects of vipd that others had changed or removed, mended.")
	m.events = counter("vipd_store_events_total", "States that the store has published.")
	m.reloadFailures = counter("vipd_config_reload_failures_total", "Reloads that found errors and kept the last good state.")
	m.registry.MustRegister(
		m.syncDuration, m.lastSuccess, m.failures, m.changes, m.programming, m.repairs, m.events, m.reloadFailures, m.checks,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(d), newOwnedCollector(d),
	)
	return m
}

// Synced is called by the engine.
func (m *metrics) Synced(full bool, took time.Duration, changes int, failed bool) {
	kind := "partial"
	if full {
		kind = "full"
	}
	m.syncDuration.WithLabelValues(kind).Observe(took.Seconds())
	m.changes.Add(float64(changes))
	if failed {
		m.failures.Inc()
		return
	}
	m.lastSuccess.SetToCurrentTime()
}

// Programmed is called by the engine.
func (m *metrics) Programmed(latency time.Duration) { m.programming.Observe(latency.Seconds()) }

// Repaired is called by the engine.
func (m *metrics) Repaired(n int, what string) {
	m.repairs.Add(float64(n))
	recorder.Repaired(m.journal, n, what)
}

// checked counts one health check.
func (m *metrics) checked(t balancer.HealthType, took time.Duration) {
	m.checks.WithLabelValues(string(t)).Observe(took.Seconds())
}

func (m *metrics) storeEvent()   { m.events.Inc() }
func (m *metrics) reloadFailed() { m.reloadFailures.Inc() }

// collector shows what is so at the moment of the question.
type collector struct {
	*Daemon
	info, mode, fallback, pending, connected, problems, services, frontends,
	serviceConnections, serviceBytes, serviceFailures, retries, accessLost *prometheus.Desc
}

func newCollector(d *Daemon) *collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("vipd_"+name, help, labels, nil)
	}
	return &collector{
		Daemon:             d,
		info:               describe("build_info", "Always 1; the labels say which build this is.", "version", "goversion"),
		mode:               describe("mode", "1 for the mode in use.", "mode"),
		fallback:           describe("mode_fallback", "1 while another mode serves than the one that is wanted."),
		pending:            describe("sync_pending_changes", "Frontends that are not yet as wanted, those in backoff included."),
		connected:          describe("store_connected", "1 while the store can be read."),
		problems:           describe("problems", "Problems, by service and field.", "service", "field"),
		services:           describe("services", "Services."),
		frontends:          describe("frontends", "Frontends: one for each address, port and protocol."),
		serviceConnections: describe("service_connections_total", "Connections and UDP flows of clients.", "service", "port"),
		serviceBytes:       describe("service_bytes_total", "Bytes from (in) and to (out) clients.", "service", "port", "direction"),
		serviceFailures:    describe("service_connect_failures_total", "Connects to endpoints that failed, in userspace mode.", "service", "port"),
		retries:            describe("userspace_dial_retries_total", "Attempts to reach an endpoint that failed and went on to another."),
		accessLost:         describe("access_log_lost_total", "Connections that the access log lacks, as its disk was too slow or failed."),
	}
}

// Describe is for the registry.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.info, c.mode, c.fallback, c.pending, c.connected, c.problems, c.services, c.frontends,
		c.serviceConnections, c.serviceBytes, c.serviceFailures, c.retries, c.accessLost,
	} {
		out <- d
	}
}

// Collect is for the registry.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	v := c.views.Look()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	c.collectNode(v, gauge)
	if c.access != nil {
		out <- prometheus.MustNewConstMetric(c.accessLost, prometheus.CounterValue, float64(c.access.Lost()))
	}
	c.collectCounts(v, out)
}

// collectCounts shows what dataplanes have counted. Where the kernel connects, there is no word of connects that fail.
func (c *collector) collectCounts(v *status.View, out chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	retries, dials := c.counters.DialRetries()
	if dials {
		count(c.retries, retries)
	}
	for key, f := range v.Counts() {
		count(c.serviceConnections, f.Connections, string(key.Service), key.Port)
		count(c.serviceBytes, f.In, string(key.Service), key.Port, "in")
		count(c.serviceBytes, f.Out, string(key.Service), key.Port, "out")
		if dials {
			count(c.serviceFailures, f.Failures, string(key.Service), key.Port)
		}
	}
}

func (c *collector) collectNode(v *status.View, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(c.info, 1, c.Version, runtime.Version())
	gauge(c.mode, 1, string(v.Mode.Name))
	gauge(c.fallback, oneIf(v.Mode.Fallback))
	gauge(c.pending, float64(v.Pending()+len(v.Sync.Failing)))
	gauge(c.connected, oneIf(v.State.Snapshot.Connected))
	gauge(c.services, float64(v.State.Snapshot.Services.Len()))
	gauge(c.frontends, float64(v.State.Desired.Frontends.Len()))
	type place struct{ service, field string }
	problems := map[place]float64{}
	for _, p := range v.Problems() {
		problems[place{string(p.Service), p.Field}]++
	}
	for at, n := range problems {
		gauge(c.problems, n, at.service, at.field)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
