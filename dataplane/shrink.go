package dataplane

// Shrink returns m, or a new map if m is empty, because iterating over an empty map that was large
// is slow.
func Shrink[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > 0 {
		return m
	}
	return map[K]V{}
}
