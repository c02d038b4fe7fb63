package events_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
)

// model is a simple reference implementation of a history: a list that drops the oldest event of
// the most frequent kind when it is full.
type model struct {
	limit int
	all   []events.Event
	next  uint64
}

func (m *model) record(e events.Event) {
	if len(m.all) == m.limit {
		count := map[events.Kind]int{}
		most := 0
		for _, e := range m.all {
			count[e.Kind]++
			most = max(most, count[e.Kind])
		}
		for i, e := range m.all {
			if count[e.Kind] == most {
				m.all = append(m.all[:i:i], m.all[i+1:]...)
				break
			}
		}
	}
	e.Seq = m.next
	m.next++
	m.all = append(m.all, e)
}

func (m *model) read(since uint64, most int) (events []events.Event, missed uint64) {
	for _, e := range m.all {
		if e.Seq > since && (most == 0 || len(events) < most) {
			missed += e.Seq - since - 1
			since = e.Seq
			events = append(events, e)
		}
	}
	return events, missed
}

// TestHistoryIsItsModel records and reads random events, with random limits. The history must
// return the same events as the model.
func TestHistoryIsItsModel(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		start := time.UnixMicro(1_000_000)
		m := &model{limit: 1 + r.IntN(40), next: 1_000_000}
		j := events.New(events.Options{Log: slog.New(slog.DiscardHandler), Limit: m.limit, Now: func() time.Time { return start }})
		kinds := events.Kind("").Values()[:1+r.IntN(5)]
		for step := range 300 {
			if r.IntN(3) > 0 {
				kind := kinds[min(r.IntN(len(kinds)), r.IntN(len(kinds)))] // some kinds are more frequent
				e := events.Event{Kind: events.Kind(kind), At: start, Text: fmt.Sprint(step)}
				m.record(e)
				j.Record(e)
				continue
			}
			since, most := 1_000_000-1+r.Uint64N(m.next-1_000_000+1), r.IntN(20)
			got, missed := j.Read(since, most)
			want, wantMissed := m.read(since, most)
			if len(got) != len(want) || missed != wantMissed || len(got) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, limit %d: Read(%d, %d) = %v, missed = %d, want %v, missed = %d", seed, m.limit, since, most, got, missed, want, wantMissed)
			}
		}
	}
}

// TestFollowers runs several writers and readers at once. Each reader must receive each event once
// and in order, or count it as missed. A waiting reader must not block writers.
func TestFollowers(t *testing.T) {
	const writers, each, limit = 4, 2_000, 100
	j := events.New(events.Options{Log: slog.New(slog.DiscardHandler), Limit: limit})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var writing, reading sync.WaitGroup
	for reader := range 6 {
		reading.Go(func() {
			r := rand.New(rand.NewPCG(uint64(reader), 1))
			var since, got, missed uint64
			for got+missed < writers*each && ctx.Err() == nil {
				more := j.Changed()
				events, gone := j.Read(since, 1+r.IntN(50))
				for _, e := range events {
					if e.Seq <= since {
						t.Errorf("event %d follows %d, want increasing numbers", e.Seq, since)
					}
					since = e.Seq
				}
				got, missed = got+uint64(len(events)), missed+gone
				if len(events) == 0 {
					select {
					case <-more:
					case <-ctx.Done():
					}
				}
			}
			if got+missed != writers*each {
				t.Errorf("reader %d received %d events and missed %d, want %d in total", reader, got, missed, writers*each)
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				j.Record(events.Event{Kind: events.Health, Service: balancer.Name(fmt.Sprint("w", w)), Text: fmt.Sprint(i)})
			}
		})
	}
	writing.Wait()
	reading.Wait()
	events, missed := j.Read(0, 0)
	if len(events) != limit || missed != writers*each-limit {
		t.Errorf("events in the history = %d, missed = %d, want %d and %d", len(events), missed, limit, writers*each-limit)
	}
	next := map[balancer.Name]int{}
	for _, e := range events {
		var i int
		if _, err := fmt.Sscan(e.Text, &i); err != nil || i < next[e.Service] {
			t.Errorf("event %q of %s is out of order (%v), want the order in which events were recorded", e.Text, e.Service, err)
		}
		next[e.Service] = i + 1
	}
}

// TestWaitingCostsNothing makes a reader wait for two events. The reader must read once at the
// start and once after each event.
func TestWaitingCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := events.New(events.Options{Log: slog.New(slog.DiscardHandler)})
		looks := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				more := j.Changed()
				looks++
				if events, _ := j.Read(0, 0); len(events) == 2 {
					return
				}
				<-more
			}
		}()
		for range 2 {
			time.Sleep(time.Hour)
			j.Record(events.Event{Kind: events.Drift, Text: "things were mended"})
			synctest.Wait()
		}
		<-done
		if looks != 3 {
			t.Errorf("the reader read %d times, want 3", looks)
		}
	})
}

// TestEarlierProcess reads the events after a number that this process has not assigned. Read must
// return all events, whether the number is smaller or larger than this process's numbers.
func TestEarlierProcess(t *testing.T) {
	at := time.UnixMicro(5_000)
	j := events.New(events.Options{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return at }})
	if events, missed := j.Read(77, 0); len(events) != 0 || missed != 0 {
		t.Errorf("empty history: events = %v, missed = %d, want none", events, missed)
	}
	j.Record(events.Event{Kind: events.Mode, Text: "one"})
	j.Record(events.Event{Kind: events.Mode, Text: "two"})
	for since, want := range map[uint64]int{0: 2, 4_999: 2, 5_000: 1, 5_001: 0, 5_002: 2, 1 << 60: 2} {
		if events, missed := j.Read(since, 0); len(events) != want || missed != 0 {
			t.Errorf("after %d: events = %d, missed = %d, want %d and 0", since, len(events), missed, want)
		}
	}
}

// TestLog records events. Each event must appear in the log once, with its text and attributes,
// unless its level is too low.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	j := events.New(events.Options{Log: logTo(&out)})
	j.Record(events.Event{
		Kind: events.Health, Level: slog.LevelWarn, Service: "web", Endpoint: "10.0.0.1:80", Text: "is down", Cause: "connection refused",
		Was: "up", Lasted: 90 * time.Minute,
	})
	j.Record(events.Event{Kind: events.Panic, Level: slog.LevelError, Service: "web", Text: "is in panic"})
	j.Record(events.Event{Kind: events.Apply, Text: "carried out", Took: 1500 * time.Microsecond, Revision: 7})
	j.Record(events.Event{Kind: events.Apply, Level: slog.LevelDebug, Text: "carried out"})
	over, end := context.WithCancel(t.Context())
	end()
	j.Run(over) // logs the remaining events
	want := `level=WARN msg="endpoint is down" kind=health service=web backend=10.0.0.1:80 cause="connection refused" was=up lasted=1h30m0s
level=ERROR msg="service is in panic" kind=panic service=web
level=INFO msg="carried out" kind=apply took=2ms rev=7
`
	if out.String() != want {
		t.Errorf("log =\n%swant\n%s", out.String(), want)
	}
}

// clogged is a log that accepts a number of lines, and then blocks until free is closed.
type clogged struct {
	takes int
	free  chan struct{}
	lines []string
}

func (c *clogged) Write(line []byte) (int, error) {
	if c.takes--; c.takes < 0 {
		<-c.free
	}
	c.lines = append(c.lines, string(line))
	return len(line), nil
}

// TestCloggedLog records more events than the history keeps, while the log is blocked. Recording
// must not block. When the log is released, it must receive the number of dropped events, and the
// remaining events in order.
func TestCloggedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &clogged{takes: 2, free: make(chan struct{})}
		j := events.New(events.Options{Log: logTo(log), Limit: 10})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); j.Run(ctx) }()
		record := func(from, to int) (lines []string) {
			for i := from; i <= to; i++ {
				j.Record(events.Event{Kind: events.Mode, Text: fmt.Sprint(i)})
				lines = append(lines, fmt.Sprintf("level=INFO msg=%d kind=mode\n", i))
			}
			return lines
		}
		want := record(1, 2)
		synctest.Wait()
		want = append(want, record(3, 3)...)
		synctest.Wait() // the third line blocks
		want = append(want, "level=WARN msg=\"15 events are missing from the log, because the log was too slow\"\n")
		want = append(want, record(4, 28)[15:]...)
		if events, _ := j.Read(0, 0); len(events) != 10 || len(log.lines) != 2 {
			t.Errorf("events in the history = %d, want 10; log = %q, want 2 lines", len(events), log.lines)
		}
		close(log.free)
		synctest.Wait()
		want = append(want, record(29, 30)...)
		end()
		<-ended
		if !slices.Equal(log.lines, want) {
			t.Errorf("log =\n%q, want\n%q", log.lines, want)
		}
	})
}

// TestCloggedAtTheEnd cancels Run while the log is blocked. Run must wait for some seconds, and
// then return without logging more events.
func TestCloggedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &clogged{takes: 1, free: make(chan struct{})}
		j := events.New(events.Options{Log: logTo(log)})
		for range 3 {
			j.Record(events.Event{Kind: events.Mode, Text: "text"})
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		began := time.Now()
		j.Run(ctx)
		if took := time.Since(began); took < time.Second || took > 5*time.Second {
			t.Errorf("Run returned after %s, want between 1 s and 5 s", took)
		}
		close(log.free)
		synctest.Wait()
		if len(log.lines) != 2 {
			t.Errorf("log = %q, want nothing after the blocked line", log.lines)
		}
	})
}

// logTo returns a logger that writes lines without timestamps.
func logTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}
