//go:build !race

package wait

// Race: the race detector runs, which makes all work several times as much.
const Race = false
