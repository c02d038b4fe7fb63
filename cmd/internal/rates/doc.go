// Package rates computes rates from a node's traffic counts at successive times, and keeps the last
// rates for sparklines. It does not read the counts or the time itself. Callers pass both to Add.
package rates
