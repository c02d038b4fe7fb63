// Package metrics serves the metrics of api.http to Prometheus.
//
//	the daemon's parts -> Metrics: counters and histograms of what happened
//	scrape -> a view of one moment -> gauges, and the series of services and endpoints
package metrics
