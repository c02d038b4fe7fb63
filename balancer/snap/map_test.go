package snap_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/balancer/snap"
)

type key int

func (k key) Compare(other key) int { return cmp.Compare(k, other) }

// TestHistories makes the same random changes to a Map and to a built-in map. Both must always have
// the same entries, and Diff must agree with a comparison of all entries.
func TestHistories(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		keys := 1 + r.IntN(60)
		var m snap.Map[key, int]
		model := map[key]int{}
		type version struct {
			m     snap.Map[key, int]
			model map[key]int
		}
		versions := []version{{m, maps.Clone(model)}}
		for range 1 + r.IntN(150) {
			k, v := key(r.IntN(keys)), r.IntN(4)
			if r.IntN(3) == 0 {
				m = m.Delete(k)
				delete(model, k)
			} else {
				m = m.Set(k, v)
				model[k] = v
			}
			versions = append(versions, version{m, maps.Clone(model)})
		}
		for range 40 {
			a, b := versions[r.IntN(len(versions))], versions[r.IntN(len(versions))]
			checkSame(t, seed, a.m, a.model)
			checkDiff(t, seed, a.m, b.m, a.model, b.model)
		}
	}
}

func checkSame(t *testing.T, seed uint64, m snap.Map[key, int], model map[key]int) {
	t.Helper()
	if got := maps.Collect(m.All()); !maps.Equal(got, model) || m.Len() != len(model) {
		t.Fatalf("seed %d: map = %v (len %d), want %v", seed, got, m.Len(), model)
	}
	got := slices.Collect(m.Keys())
	if !slices.IsSorted(got) {
		t.Fatalf("seed %d: keys = %v, want ascending keys", seed, got)
	}
	start := key(len(model) / 2)
	var from []key
	for k := range m.While(start, func(key) bool { return true }) {
		from = append(from, k)
	}
	i, _ := slices.BinarySearch(got, start)
	if !slices.Equal(from, got[i:]) {
		t.Fatalf("seed %d: While(%d) visits %v, want %v", seed, start, from, got[i:])
	}
	from = nil
	for k := range m.While(start, func(k key) bool { return k < start+3 }) {
		from = append(from, k)
	}
	end, _ := slices.BinarySearch(got, start+3)
	if !slices.Equal(from, got[i:end]) {
		t.Fatalf("seed %d: While(%d) visits up to three keys: %v, want %v", seed, start, from, got[i:end])
	}
}

func checkDiff(t *testing.T, seed uint64, a, b snap.Map[key, int], am, bm map[key]int) {
	t.Helper()
	want := map[key]snap.Change[int]{}
	for k, v := range am {
		if w, ok := bm[k]; !ok || w != v {
			want[k] = snap.Change[int]{Old: v, HadOld: true, New: w, HasNew: ok}
		}
	}
	for k, w := range bm {
		if _, ok := am[k]; !ok {
			want[k] = snap.Change[int]{New: w, HasNew: true}
		}
	}
	got := maps.Collect(snap.Diff(a, b))
	if !maps.Equal(got, want) {
		t.Fatalf("seed %d: diff = %v, want %v", seed, got, want)
	}
}

// TestUnchanged sets entries to the values that they have, and deletes missing entries. Set and
// Delete must return the same map.
func TestUnchanged(t *testing.T) {
	var m snap.Map[key, int]
	for i := range 100 {
		m = m.Set(key(i), i)
	}
	if m.Set(50, 50) != m || m.Delete(1000) != m {
		t.Fatal("a change without effect returned a new map")
	}
	for range snap.Diff(m, m) {
		t.Fatal("Diff of a map and itself returns an entry")
	}
}

func TestDiffStops(t *testing.T) {
	var a, b snap.Map[key, int]
	for i := range 100 {
		b = b.Set(key(i), i)
	}
	n := 0
	for range snap.Diff(a, b) {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Fatalf("loop with a break: iterations = %d, want 3", n)
	}
}

func BenchmarkSetAndDiff(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var m snap.Map[key, int]
			for i := range n {
				m = m.Set(key(i), i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				next := m.Set(key(i%n), i+n)
				for range snap.Diff(m, next) {
				}
				m = next
			}
		})
	}
}
