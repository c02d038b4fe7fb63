package dataplanetest

import (
	"math"
	"testing"
)

// TestChiLimit computes the exact probability of values above each limit. For an even number of
// degrees of freedom, it is a short sum. The probability must be about 1e-9.
func TestChiLimit(t *testing.T) {
	for _, freedom := range []int{2, 6, 10, 100, 1000} {
		half := chiLimit(freedom) / 2
		tail := 0.0
		for k := range freedom / 2 {
			lg, _ := math.Lgamma(float64(k + 1))
			tail += math.Exp(float64(k)*math.Log(half) - half - lg)
		}
		if tail < 2e-11 || tail > 1.5e-9 {
			t.Errorf("%d degrees of freedom: probability of values above %.1f = %.2g, want about 1e-9", freedom, 2*half, tail)
		}
	}
	if got := chiLimit(0); got != 0 {
		t.Errorf("chiLimit(0) = %v, want 0", got)
	}
}
