// Package snap provides Map, a persistent ordered map. Every version remains valid and unchanged
// when another version is derived from it, and the time to compare two versions is proportional to
// their difference.
//
// vipd's parts pass all state to each other in Maps. Each reader keeps the version that it has
// applied, reads the newest version when it is ready, and applies the difference:
//
//	before := done
//	after := wanted.Load()
//	for key, change := range snap.Diff(before, after) {
//		...
//	}
//
// The zero Map is empty and ready for use. Maps are values: copying is free, and goroutines share a
// map without a lock. Values are compared with ==, so publish pointers, keep the old pointer if the
// value has not changed, and never edit a published value.
package snap
