//go:build race

package wait

// Race reports whether the race detector is enabled, which multiplies all work.
const Race = true
