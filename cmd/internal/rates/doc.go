// Package rates computes rates from a node's counts at successive moments, and keeps the last rates
// for sparklines. It has no clock and uses no daemon: callers pass counts with their time to Add.
package rates
