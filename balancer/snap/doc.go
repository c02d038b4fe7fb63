// Package snap provides Map, a persistent ordered map: every version stays valid and unchanged while the next one is
// made from it, and two versions are compared in time proportional to what differs between them.
//
// It is the carrier of everything that vipd hands from one part to the next. A part that is behind keeps the version
// that it has applied, takes the newest one when it gets round to it, and asks Diff for the difference:
//
//	before := done
//	after := wanted.Load()
//	for key, change := range snap.Diff(before, after) {
//		...
//	}
//
// The zero Map is empty and ready for use. Maps are values: copying one is free, and sharing one between goroutines
// needs no lock. Map has no deep equality: values are compared with ==, so publish pointers, keep the old pointer
// where the value has not changed, and never edit what a published pointer leads to.
package snap
