package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/dataplane"
)

// Options configures Metrics.
type Options struct {
	// Views provides the values of gauges.
	Views *status.Sources
	// PerEndpoint reports whether endpoints have their own series.
	PerEndpoint bool
	Events      *events.History
	// AccessLogLost returns how many connections are missing from the access log.
	AccessLogLost func() uint64
	// Owner returns the state of vipd owner on this host, or nil if vipd owner is not running.
	Owner func() *api.OwnerStatus
}

// Metrics serves /metrics. It counts events, and reads the current state from a view at each
// scrape.
type Metrics struct {
	Options
	registry       *prometheus.Registry
	syncDuration   *prometheus.HistogramVec
	lastSuccess    prometheus.Gauge
	failures       prometheus.Counter
	changes        prometheus.Counter
	programming    prometheus.Histogram
	repairs        prometheus.Counter
	storeEvents    prometheus.Counter
	reloadFailures prometheus.Counter
	checks         *prometheus.HistogramVec
	// These fields count how often ejections, drains and panics started, by service.
	ejections, drained, panicked serviceCount
}

var _ dataplane.Metrics = (*Metrics)(nil)

// New returns metrics with all counts at zero.
func New(o Options) *Metrics {
	m := &Metrics{Options: o, registry: prometheus.NewRegistry()}
	// The buckets range from half a millisecond (a sync of one frontend) to half a minute (a full
	// load of ten thousand).
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 17)
	m.syncDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "vipd_sync_duration_seconds", Help: "Duration of syncs that had work to do; full syncs compare everything.", Buckets: buckets,
	}, []string{"kind"})
	m.programming = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "vipd_programming_duration_seconds", Help: "Time from reading a change in the store to applying it.", Buckets: buckets,
	})
	m.checks = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "vipd_health_check_duration_seconds", Help: "Duration of health checks, by type.", Buckets: buckets,
	}, []string{"type"})
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m.lastSuccess = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vipd_sync_last_success_timestamp_seconds", Help: "Unix time at which the last sync without a failure ended.",
	})
	m.failures = counter("vipd_sync_failures_total", "Syncs with at least one failure.")
	m.changes = counter("vipd_sync_changes_total", "Frontends changed in the dataplane.")
	m.repairs = counter("vipd_drift_repairs_total", "Repairs of vipd's objects that other programs had changed or removed.")
	m.storeEvents = counter("vipd_store_events_total", "States that the store has published.")
	m.reloadFailures = counter("vipd_config_reload_failures_total", "Reloads that found errors and kept the last good state.")
	m.registry.MustRegister(
		m.syncDuration, m.lastSuccess, m.failures, m.changes, m.programming, m.repairs, m.storeEvents, m.reloadFailures, m.checks,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector(m.collect), collector(m.collectLimits), collector(m.collectOwned),
	)
	return m
}

// Synced implements [dataplane.Metrics]. It records a sync of the engine.
func (m *Metrics) Synced(full bool, took time.Duration, changes int, failed bool) {
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

// Programmed implements [dataplane.Metrics]. It records how long the engine took to apply a change
// after the store published it.
func (m *Metrics) Programmed(latency time.Duration) { m.programming.Observe(latency.Seconds()) }

// Repaired implements [dataplane.Metrics]. It counts repairs by the engine, and records them in the
// history.
func (m *Metrics) Repaired(n int, what string) {
	m.repairs.Add(float64(n))
	transitions.Repaired(m.Events, n, what)
}

// Ejected counts an ejection from the service.
func (m *Metrics) Ejected(service balancer.Name) { m.ejections.add(service) }

// Drained counts the start of a drain.
func (m *Metrics) Drained(service balancer.Name) { m.drained.add(service) }

// Panicked counts the start of a panic.
func (m *Metrics) Panicked(service balancer.Name) { m.panicked.add(service) }

// StorePublished counts a published state of the store.
func (m *Metrics) StorePublished() { m.storeEvents.Inc() }

// ReloadFailed counts a reload that kept the last valid state.
func (m *Metrics) ReloadFailed() { m.reloadFailures.Inc() }

// Checked counts a health check and its duration.
func (m *Metrics) Checked(t balancer.HealthType, took time.Duration) {
	m.checks.WithLabelValues(string(t)).Observe(took.Seconds())
}

// collector reads the current state during a scrape. It does not declare its metrics in advance, so
// the code names each metric only once.
type collector func(emitter)

// Describe implements prometheus.Collector. It describes no metrics, so the registry does not check
// the collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	c(emitter{out, map[string]*prometheus.Desc{}})
}

// emitter receives metrics. Names omit the prefix vipd_, and labels are pairs of a name and a
// value.
type emitter struct {
	out   chan<- prometheus.Metric
	known map[string]*prometheus.Desc
}

// describe returns the registry's description of a metric, and the values of its labels.
func (t emitter) describe(name, help string, labels []string) (d *prometheus.Desc, values []string) {
	var names []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	if t.known[name] == nil {
		t.known[name] = prometheus.NewDesc("vipd_"+name, help, names, nil)
	}
	return t.known[name], values
}

func (t emitter) gauge(name, help string, value float64, labels ...string) {
	d, values := t.describe(name, help, labels)
	t.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, values...)
}

func (t emitter) counter(name, help string, value uint64, labels ...string) {
	d, values := t.describe(name, help, labels)
	t.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), values...)
}

func (t emitter) histogram(name, help string, h *api.Histogram) {
	d, _ := t.describe(name, help, nil)
	buckets := map[float64]uint64{}
	for i, bound := range api.HistogramBounds() {
		buckets[bound] = h.Counts[i]
	}
	t.out <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum, buckets)
}

func (m *Metrics) collect(tell emitter) {
	v := m.Views.Look()
	tell.gauge("build_info", "Always 1; the labels identify the build.", 1, "version", m.Views.Version, "goversion", runtime.Version())
	tell.gauge("mode", "1 for the mode in use.", 1, "mode", string(v.Mode.Name))
	tell.gauge("mode_fallback", "1 while a fallback mode serves instead of the wanted mode.", oneIf(v.Mode.Fallback))
	tell.gauge("sync_pending_changes", "Frontends that are not applied yet, including those in backoff.", float64(v.Pending()+len(v.Sync.Failing)))
	tell.gauge("store_connected", "1 while the store can be read.", oneIf(v.State.Snapshot.Connected))
	tell.gauge("services", "Services.", float64(v.State.Snapshot.Services.Len()))
	tell.gauge("frontends", "Number of frontends; each is an address, port and protocol.", float64(v.State.Desired.Frontends.Len()))
	type place struct{ service, field string }
	problems := map[place]float64{}
	for _, p := range v.Problems() {
		problems[place{string(p.Service), p.Field}]++
	}
	for key, n := range problems {
		tell.gauge("problems", "Problems, by service and field.", n, "service", key.service, "field", key.field)
	}
	tell.counter("access_log_lost_total", "Connections missing from the access log because its disk was too slow or failed.", m.AccessLogLost())
	retries, _ := m.Views.Counters.DialRetries()
	tell.counter("userspace_dial_retries_total", "Failed connection attempts that were repeated at another endpoint.", retries)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectOwned reports the state of vipd owner on this host, if vipd owner is running.
func (m *Metrics) collectOwned(tell emitter) {
	s := m.Owner()
	if s == nil {
		return
	}
	emitOwner(tell, s)
	if s.VRRP != nil {
		for i := range s.VRRP.Groups {
			emitVRRPGroup(tell, &s.VRRP.Groups[i])
		}
	}
}

func emitOwner(tell emitter, s *api.OwnerStatus) {
	for _, a := range s.Bound {
		tell.gauge("vip_owner", "1 if this host owns the VIP.", 1, "vip", a.String())
	}
	for _, a := range s.Unowned {
		tell.gauge("vip_unowned", "1 if no live host owns the VIP.", 1, "vip", a.String())
	}
	for _, p := range s.Peers {
		tell.gauge("ownership_peer_up", "1 if this host receives the heartbeats of the peer on this network.", oneIf(p.Up), "peer", p.Node, "network", p.Network)
	}
	tell.histogram("ownership_confirmed_seconds", "Time for which this host's session is still confirmed, measured every 10 ms; below the gate's time, VIPs are silent.", &s.ConfirmedFor)
	tell.histogram("ownership_takeover_seconds", "Time from the previous owner's last sign of life until this host owned the VIP.", &s.TakenAfter)
	for _, r := range s.Rivals {
		tell.counter("ownership_rivals_total", "Claims by other hosts to this host's VIPs, counted at most once a second.", uint64(r.Count), "vip", r.VIP.String())
	}
	tell.counter("ownership_announcements_total", "Announcements of VIPs to neighbors, since vipd owner started.", s.Announced)
	tell.gauge("ownership_gate_open", "1 if the gate lets frames of owned VIPs pass.", oneIf(s.Gate == "open"))
	tell.gauge("ownership_late_seconds_max", "Longest time that vipd owner waited for a processor.", s.Late)
	tell.counter("ownership_foreign_heartbeats_total", "Heartbeats signed with another key.", uint64(s.Foreign))
	for _, c := range []struct {
		name, help string
		of         map[string]int
	}{
		{"ownership_takeovers_total", "VIPs that this host acquired, since vipd owner started.", s.Took},
		{"ownership_moves_total", "VIPs that this host gave away, since vipd owner started.", s.Gave},
		{"ownership_gate_closed_total", "VIPs that were silenced because the gate closed; a gate without VIPs counts once.", s.GateClosed},
	} {
		for reason, n := range c.of {
			tell.counter(c.name, c.help, uint64(n), "reason", reason)
		}
	}
}
