package lists

// Mapped returns the result of a function for each element of a list.
func Mapped[T, R any](all []T, to func(T) R) []R {
	out := make([]R, len(all))
	for i, t := range all {
		out[i] = to(t)
	}
	return out
}

// NonNil returns s, or an empty list if s is nil, because JSON shows a nil list as null.
func NonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
