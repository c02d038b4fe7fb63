// Package rates computes rates from successive readings of a node's traffic counters, and keeps the
// latest rates for sparklines. It reads neither the counters nor the clock. Callers pass the
// counters with their timestamp to Add.
package rates
