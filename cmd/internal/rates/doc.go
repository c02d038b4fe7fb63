// Package rates computes rates from a node's counts at successive times, and keeps the last rates
// for sparklines. It uses neither a clock nor a daemon: callers pass counts with their time to Add.
package rates
