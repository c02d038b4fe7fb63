//go:build !race

package wait

// Race reports whether the race detector runs, which multiplies all work.
const Race = false
