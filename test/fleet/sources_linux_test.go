package fleet

import (
	"strconv"
	"testing"
	"time"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// These are the targets of the measurements.
const (
	// seenWithin is the maximum time until a change has reached each of 500 sources.
	seenWithin = 250 * time.Millisecond
	// firstWithin and firstMemory are the maximum time and memory for the complete first state of
	// 10,000 services with 10 endpoints each.
	firstWithin = 5 * time.Second
	firstMemory = 400 << 20
	// lagWithin is the maximum time to publish a change at 200 changes per second.
	lagWithin = 250 * time.Millisecond
)

// TestSources briefly measures sources and etcd without vipd. Times and memory must be within a
// multiple of the targets.
func TestSources(t *testing.T) {
	if testing.Short() {
		t.Skip("needs half a minute, which is too long for -short")
	}
	binary := buildFollower(t)
	t.Run("many sources", func(t *testing.T) {
		w := watchers{sources: 500, changes: 50, pace: 100 * time.Millisecond}.measure(t, binary)
		t.Logf("time of 500 sources until the first state = %s, for a change = %s (the put itself %s)", w.first, w.seen, w.put)
		wantWithin(t, "99 of 100 see a change", seenWithin, w.seen.at(0.99))
	})
	t.Run("many services", func(t *testing.T) {
		l := large{services: 10_000, endpoints: 10, rate: 200, stream: 3 * time.Second}.measure(t, binary)
		t.Logf("10,000 services: first state after %s with %.0f MiB at most; 200 changes a second are published after %s, the last after %s; %.1f MiB in use, then %.1f more",
			l.first, mib(l.memory), l.lag, l.end, mib(l.heap), mib(l.heapMore))
		if l.memory > firstMemory {
			t.Errorf("memory of the first state = %.0f MiB, want at most %.0f MiB", mib(l.memory), mib(firstMemory))
		}
		if l.changeBytes > 1000 {
			t.Errorf("changed endpoint: traffic = %d bytes, want less", l.changeBytes)
		}
		if l.heapMore > l.heap/10 {
			t.Errorf("heap = %d bytes, growth after changes = %d bytes, want less", l.heap, l.heapMore)
		}
		wantWithin(t, "the first state", firstWithin, l.first)
		wantWithin(t, "publishing a change", lagWithin, l.lag.at(0.99))
	})
}

// BenchmarkSources measures sources and etcd for a minute. The whole measurement is one operation.
func BenchmarkSources(b *testing.B) {
	binary := buildFollower(b)
	b.Run("500 sources", func(b *testing.B) {
		for b.Loop() {
			w := watchers{sources: 500, changes: 600, pace: 100 * time.Millisecond, idle: 15 * time.Second, storm: true}.measure(b, binary)
			w.seen.report(b, "seen")
			w.put.report(b, "put")
			b.ReportMetric(100*w.idle, "idle-%CPU")
			b.ReportMetric(float64(w.changeCPU.Nanoseconds())/1000, "us-CPU/change/source")
			b.ReportMetric(w.first.Seconds(), "first-s")
			b.ReportMetric(w.firstCPU.Seconds(), "first-s-CPU")
			b.ReportMetric(w.back.Seconds(), "back-s")
			b.ReportMetric(w.backCPU.Seconds(), "back-s-CPU")
			b.ReportMetric(float64(w.sourceMemory>>10), "etcd-KiB/source")
			b.ReportMetric(float64(w.processMemory>>10), "KiB/source")
		}
	})
	b.Run("10000 services", func(b *testing.B) {
		for b.Loop() {
			l := large{services: 10_000, endpoints: 10, rate: 200, stream: time.Minute}.measure(b, binary)
			l.lag.report(b, "published")
			b.ReportMetric(l.first.Seconds(), "first-s")
			b.ReportMetric(mib(l.memory), "first-MiB")
			b.ReportMetric(mib(l.firstBytes), "first-MiB-read")
			b.ReportMetric(milli(l.end), "last-ms")
			b.ReportMetric(float64(l.changeBytes), "B/change")
			b.ReportMetric(float64(l.changeCPU.Microseconds()), "us-CPU/change")
			b.ReportMetric(mib(l.heap), "heap-MiB")
			b.ReportMetric(mib(l.heapMore), "heap-MiB-more")
			b.ReportMetric(mib(l.rssMore), "RSS-MiB-more")
		}
	})
}

// watchers configures the measurement of 500 sources.
type watchers struct {
	sources, changes int
	pace             time.Duration
	idle             time.Duration // idle time for etcd's CPU share; 0 means not measured
	storm            bool          // whether etcd is restarted
}

// watcherFigures has the figures for 500 sources.
type watcherFigures struct {
	first         time.Duration // time until all sources have the first state, if they connect at the same time
	firstCPU      time.Duration // CPU time of etcd for the first state
	seen, put     spread
	idle          float64       // idle etcd's CPU share of one core
	changeCPU     time.Duration // CPU time of etcd for one change to one source
	sourceMemory  int64         // memory of etcd for one source
	processMemory int64         // memory of the follower's process for one source
	back          time.Duration // time until all sources receive changes again after a restart of etcd
	backCPU       time.Duration
}

// measure starts sources that follow one etcd, and measures them.
func (w watchers) measure(t testing.TB, binary string) (r watcherFigures) {
	t.Helper()
	const services, endpoints = 20, 10
	c := etcdkit.Start(t, etcdkit.Options{})
	defer c.Kill() // the next measurement needs the machine for itself
	member, client := c.Members[0], c.Client()
	fill(t, client, services, endpoints)
	before, _ := memory(t, member.Pid())
	used := cpu(t, member.Pid())
	f := follow(t, binary, c.Endpoints(), "-sources", strconv.Itoa(w.sources))
	defer f.stop()
	r.first, r.firstCPU = f.first, cpu(t, member.Pid())-used
	if w.idle > 0 {
		used = cpu(t, member.Pid())
		time.Sleep(w.idle) // the measured time
		r.idle = (cpu(t, member.Pid()) - used).Seconds() / w.idle.Seconds()
	}
	used = cpu(t, member.Pid())
	puts := change(t, client, w.changes, w.pace, func(i int) (string, string) {
		service, endpoint := i%services, i/services%endpoints
		return endpointKey(service, endpoint), endpointText(service, endpoint, 2+i%1000)
	})
	f.reach(puts.last)
	r.changeCPU = (cpu(t, member.Pid()) - used) / time.Duration(w.changes*w.sources)
	r.seen, r.put = f.delays(puts), puts.took
	after, _ := memory(t, member.Pid())
	r.sourceMemory = (after - before) / int64(w.sources)
	now, _ := memory(t, f.pid)
	r.processMemory = now / int64(w.sources)
	if w.storm {
		member.Kill()
		member.Start()
		began := time.Now()
		last := change(t, client, 1, time.Millisecond, func(int) (string, string) { return endpointKey(0, 0), endpointText(0, 0, 7) })
		f.reach(last.last)
		r.back, r.backCPU = time.Since(began), cpu(t, member.Pid())
	}
	return r
}

// large configures the measurement of a source that follows 10,000 services.
type large struct {
	services, endpoints int
	rate                int // changes a second
	stream              time.Duration
}

// largeFigures has the figures for a source that follows 10,000 services.
type largeFigures struct {
	first          time.Duration
	memory         int64 // maximum memory until the first state is complete
	lag            spread
	end            time.Duration // time from the last change until it was published
	heap, heapMore int64         // heap in use before the changes, and its growth by them
	rssMore        int64
	changeCPU      time.Duration // CPU time of the source for one change
	firstBytes     int64         // bytes from etcd for the first state
	changeBytes    int64         // bytes from etcd for one change
}

func (l large) measure(t testing.TB, binary string) (r largeFigures) {
	t.Helper()
	c := etcdkit.Start(t, etcdkit.Options{})
	defer c.Kill()
	client := c.Client()
	fill(t, client, l.services, l.endpoints)
	relay := etcdkit.NewRelay(t, c.Members[0].Addr())
	f := follow(t, binary, []string{c.URL(relay.Addr())}, "-state-dir", t.TempDir())
	defer f.stop()
	r.first, r.firstBytes = f.first, relay.Bytes()
	_, r.memory = memory(t, f.pid)
	r.heap = f.heap()
	_ = f.delays(&puts{}) // discards the samples of the first state
	before, _ := memory(t, f.pid)
	used, bytes := cpu(t, f.pid), relay.Bytes()
	puts := change(t, client, l.rate*int(l.stream/time.Second), time.Second/time.Duration(l.rate), func(i int) (string, string) {
		service, endpoint := i*7%l.services, i%l.endpoints
		return endpointKey(service, endpoint), endpointText(service, endpoint, 2+i%997)
	})
	began := time.Now()
	f.reach(puts.last)
	r.end = time.Since(began)
	r.changeCPU = (cpu(t, f.pid) - used) / time.Duration(len(puts.began))
	r.changeBytes = (relay.Bytes() - bytes) / int64(len(puts.began))
	r.lag = f.delays(puts)
	after, _ := memory(t, f.pid)
	r.heapMore, r.rssMore = f.heap()-r.heap, after-before
	for end := time.Now().Add(wait.Patience); r.heapMore > r.heap/10 && time.Now().Before(end); { // data counts as heap in use until it is written to the disk
		r.heapMore = f.heap() - r.heap
	}
	return r
}
