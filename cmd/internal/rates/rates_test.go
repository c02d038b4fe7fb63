package rates

import (
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// counted returns the counters of a service with one endpoint. second is their timestamp.
func counted(second int, connections, in uint64) api.Traffic {
	return api.Traffic{At: time.Unix(int64(second), 0), Services: []api.ServiceTraffic{{
		Name: "web", Connections: connections, In: in, Active: 3, Up: 1, Of: 1,
		Endpoints: []api.EndpointTraffic{{Address: "10.0.0.1:80", State: balancer.Active, Connections: connections / 2, Active: 3}},
	}}}
}

// TestRates adds counters from several points in time. Rates must be computed from the differences
// between successive counters. Lower counters, as after a restart of vipd, must result in a rate of
// 0, and repeated counters must be ignored.
func TestRates(t *testing.T) {
	var w Window
	for _, c := range []struct {
		counted  api.Traffic
		new, in  float64
		endpoint float64
		past     int
	}{
		{counted(10, 100, 1000), 0, 0, 0, 0},
		{counted(12, 120, 3000), 10, 1000, 5, 1},
		{counted(12, 120, 3000), 10, 1000, 5, 1},
		{counted(13, 4, 10), 0, 0, 0, 2},
		{counted(14, 8, 10), 4, 0, 2, 3},
	} {
		w.Add(c.counted)
		s, e := w.Services()[0], w.Endpoints("web")[0]
		if s.New != c.new || s.In != c.in || e.New != c.endpoint || len(s.Past) != c.past || s.Active != 3 || s.Up != 1 || s.Of != 1 {
			t.Errorf("at %s: service row = %+v, endpoint row = %+v, want %+v", c.counted.At, s, e, c)
		}
	}
	for i := range 2 * Kept {
		w.Add(counted(20+i, 10, 10))
	}
	if n := len(w.Services()[0].Past); n != Kept {
		t.Errorf("past rates = %d, want the maximum number", n)
	}
	w.Add(api.Traffic{At: time.Unix(1e6, 0)})
	if len(w.series) != 0 || len(w.Services()) != 0 {
		t.Errorf("after the service is removed: series = %v, want none", w.series)
	}
}

func TestSpark(t *testing.T) {
	for _, c := range []struct {
		past  []float32
		width int
		want  string
	}{
		{nil, 5, ""}, {[]float32{0, 0}, 5, "▁▁"}, {[]float32{0, 7, 14}, 5, "▁▄█"}, {[]float32{1, 0, 0, 0, 14}, 3, "▁▁█"}, {[]float32{9, 0, 0, 9}, 2, "██"},
	} {
		if got := Spark(c.past, c.width); got != c.want {
			t.Errorf("Spark(%v, %d) = %s, want %s", c.past, c.width, got, c.want)
		}
	}
}

// TestBytes formats numbers of bytes. Each must have the largest suitable unit.
func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1<<20 - 1: "1.0 MiB", 5 << 30: "5.0 GiB", 1 << 62: "4096.0 PiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}
