package dataplane

// Shrink returns m, or where it is empty a new map to use in its place: an empty map that has been large takes long to range over.
func Shrink[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > 0 {
		return m
	}
	return map[K]V{}
}
