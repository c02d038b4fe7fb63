package hash

// Offset is the initial value of 64-bit FNV-1a.
const Offset uint64 = 14695981039346656037

const prime = 1099511628211

// Add continues FNV-1a with more bytes. The hash h is Offset or an earlier result.
func Add[T ~[]byte | ~string](h uint64, more T) uint64 {
	for i := range len(more) {
		h = (h ^ uint64(more[i])) * prime
	}
	return h
}

// Mix is the finalizer of splitmix64. Each bit of x affects every bit of the result.
func Mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
