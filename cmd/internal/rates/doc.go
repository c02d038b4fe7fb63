// Package rates makes rates of what a node has counted at one moment after the other, and keeps those of the last ones for sparklines.
// It has no clock and asks no daemon: Add takes what was counted, with its time.
package rates
