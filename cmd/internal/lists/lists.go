package lists

// Mapped returns the results of calling the function to on each element of the list all.
func Mapped[T, R any](all []T, to func(T) R) []R {
	out := make([]R, len(all))
	for i, t := range all {
		out[i] = to(t)
	}
	return out
}

// NonNil returns s, or an empty list if s is nil. JSON encodes a nil list as null.
func NonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
