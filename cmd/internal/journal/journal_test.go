package journal_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/journal"
)

// model is a journal as a page of prose would have it: a list, from which the oldest of the most frequent kind goes.
type model struct {
	limit int
	all   []journal.Event
	next  uint64
}

func (m *model) record(e journal.Event) {
	if len(m.all) == m.limit {
		count := map[journal.Kind]int{}
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

func (m *model) read(since uint64, most int) (events []journal.Event, missed uint64) {
	for _, e := range m.all {
		if e.Seq > since && (most == 0 || len(events) < most) {
			missed += e.Seq - since - 1
			since = e.Seq
			events = append(events, e)
		}
	}
	return events, missed
}

// TestJournalIsItsModel holds random histories of events and readings, at random limits, to the model.
func TestJournalIsItsModel(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		start := time.UnixMicro(1_000_000)
		m := &model{limit: 1 + r.IntN(40), next: 1_000_000}
		j := journal.New(journal.Options{Log: slog.New(slog.DiscardHandler), Limit: m.limit, Now: func() time.Time { return start }})
		kinds := journal.Kind("").Values()[:1+r.IntN(5)]
		for step := range 300 {
			if r.IntN(3) > 0 {
				kind := kinds[min(r.IntN(len(kinds)), r.IntN(len(kinds)))] // some more often than others
				e := journal.Event{Kind: journal.Kind(kind), At: start, Text: fmt.Sprint(step)}
				m.record(e)
				j.Record(e)
				continue
			}
			since, most := 1_000_000-1+r.Uint64N(m.next-1_000_000+1), r.IntN(20)
			got, missed := j.Read(since, most)
			want, wantMissed := m.read(since, most)
			if len(got) != len(want) || missed != wantMissed || len(got) > 0 && !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, limit %d: Read(%d, %d) is %v and %d missed, want %v and %d", seed, m.limit, since, most, got, missed, want, wantMissed)
			}
		}
	}
}

// TestFollowers has many writers and readers at once. Each reader gets each event once, in order, or is told how many it
// has missed; readers that sleep don't keep writers waiting.
func TestFollowers(t *testing.T) {
	const writers, each, limit = 4, 2_000, 100
	j := journal.New(journal.Options{Log: slog.New(slog.DiscardHandler), Limit: limit})
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
						t.Errorf("event %d came after %d", e.Seq, since)
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
				t.Errorf("reader %d got %d events and missed %d of %d", reader, got, missed, writers*each)
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				j.Record(journal.Event{Kind: journal.Health, Service: balancer.Name(fmt.Sprint("w", w)), Text: fmt.Sprint(i)})
			}
		})
	}
	writing.Wait()
	reading.Wait()
	events, missed := j.Read(0, 0)
	if len(events) != limit || missed != writers*each-limit {
		t.Errorf("%d events are kept and %d are not, want %d and %d", len(events), missed, limit, writers*each-limit)
	}
	next := map[balancer.Name]int{}
	for _, e := range events {
		var i int
		if _, err := fmt.Sscan(e.Text, &i); err != nil || i < next[e.Service] {
			t.Errorf("event %q of %s comes too late (%v)", e.Text, e.Service, err)
		}
		next[e.Service] = i + 1
	}
}

// TestWaitingCostsNothing has a reader sleep until there is something, and only then look.
func TestWaitingCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := journal.New(journal.Options{Log: slog.New(slog.DiscardHandler)})
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
			j.Record(journal.Event{Kind: journal.Drift, Text: "things were mended"})
			synctest.Wait()
		}
		<-done
		if looks != 3 {
			t.Errorf("the reader looked %d times, want 3", looks)
		}
	})
}

// TestEarlierProcess: a number of an earlier process means all of this one, whichever way the clock went.
func TestEarlierProcess(t *testing.T) {
	at := time.UnixMicro(5_000)
	j := journal.New(journal.Options{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return at }})
	if events, missed := j.Read(77, 0); len(events) != 0 || missed != 0 {
		t.Errorf("an empty journal has %v, and %d are missed", events, missed)
	}
	j.Record(journal.Event{Kind: journal.Mode, Text: "one"})
	j.Record(journal.Event{Kind: journal.Mode, Text: "two"})
	for since, want := range map[uint64]int{0: 2, 4_999: 2, 5_000: 1, 5_001: 0, 5_002: 2, 1 << 60: 2} {
		if events, missed := j.Read(since, 0); len(events) != want || missed != 0 {
			t.Errorf("after %d: %d events and %d missed, want %d and none", since, len(events), missed, want)
		}
	}
}

// TestLog has each event in the log once, in its words, with the keys that all logs of vipd have.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	j := journal.New(journal.Options{Log: logTo(&out)})
	j.Record(journal.Event{
		Kind: journal.Health, Level: slog.LevelWarn, Service: "web", Endpoint: "10.0.0.1:80", Text: "is down", Cause: "connection refused",
		Was: "up", Lasted: 90 * time.Minute,
	})
	j.Record(journal.Event{Kind: journal.Panic, Level: slog.LevelError, Service: "web", Text: "is in panic"})
	j.Record(journal.Event{Kind: journal.Apply, Text: "carried out", Took: 1500 * time.Microsecond, Revision: 7})
	want := `level=WARN msg="endpoint is down" kind=health service=web backend=10.0.0.1:80 cause="connection refused" was=up lasted=1h30m0s
level=ERROR msg="service is in panic" kind=panic service=web
level=INFO msg="carried out" kind=apply took=2ms rev=7
`
	if out.String() != want {
		t.Errorf("the log has\n%swant\n%s", out.String(), want)
	}
}

// logTo writes without times.
func logTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}
