package hash

// Offset is what FNV-1a of 64 bits begins with.
const Offset uint64 = 14695981039346656037

const prime = 1099511628211

// Add goes on with FNV-1a over more bytes, from Offset or what it returned before.
func Add[T ~[]byte | ~string](h uint64, more T) uint64 {
	for i := range len(more) {
		h = (h ^ uint64(more[i])) * prime
	}
	return h
}

// Mix is the finalizer of splitmix64: each bit of x bears on every bit of the result.
func Mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
