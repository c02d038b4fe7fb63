package events

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Options configures a History.
type Options struct {
	// Log receives a line for each event, from Run.
	Log *slog.Logger
	// Limit is the maximum number of events in memory. The default of 10,000 needs about 3 MiB.
	Limit int
	// Now is the clock. The default is time.Now.
	Now func() time.Time
}

const defaultLimit = 10_000

// History holds the latest events. Its methods are safe for concurrent use.
type History struct {
	o Options

	mu     sync.Mutex // guards the fields below; never held during a write
	first  uint64     // the number of this process's first event
	next   uint64     // the number of the next event
	kept   int
	queues map[Kind]*queue
	more   chan struct{} // closed at the next event; nil if no reader waits
}

// queue holds the events of one kind, in order. The events before the index from were dropped.
type queue struct {
	events []Event
	from   int
}

// New returns an empty history.
func New(o Options) *History {
	o.Limit = cmp.Or(o.Limit, defaultLimit)
	if o.Now == nil {
		o.Now = time.Now
	}
	first := uint64(max(o.Now().UnixMicro(), 1))
	return &History{o: o, first: first, next: first, queues: map[Kind]*queue{}}
}

// Record stores an event, which Run will log. It never blocks, because otherwise a blocked log
// would stop the component that detects failed endpoints.
func (h *History) Record(e Event) {
	if e.At.IsZero() {
		e.At = h.o.Now()
	}
	e.At = e.At.Round(0) // remove the monotonic clock reading, which is meaningless in other processes
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.kept >= h.o.Limit {
		h.dropLocked()
	}
	e.Seq = h.next
	h.next++
	h.kept++
	q := h.queues[e.Kind]
	if q == nil {
		q = &queue{}
		h.queues[e.Kind] = q
	}
	q.events = append(q.events, e)
	if h.more != nil {
		close(h.more)
		h.more = nil
	}
}

// dropLocked drops the oldest event of the kind with the most events. If several kinds have that
// many events, it drops the oldest event among them.
func (h *History) dropLocked() {
	var longest *queue
	for _, q := range h.queues {
		switch n := q.len(); {
		case longest == nil || n > longest.len(), n == longest.len() && n > 0 && q.oldest() < longest.oldest():
			longest = q
		}
	}
	longest.drop()
	h.kept--
}

func (q *queue) len() int       { return len(q.events) - q.from }
func (q *queue) oldest() uint64 { return q.events[q.from].Seq }

// drop drops the oldest event. It copies the list only if more than half of its events have been
// dropped, so a drop is cheap on average.
func (q *queue) drop() {
	q.events[q.from] = Event{}
	q.from++
	if q.from > len(q.events)/2 {
		q.events = slices.Clone(q.events[q.from:])
		q.from = 0
	}
}

// after returns the events with numbers greater than seq.
func (q *queue) after(seq uint64) []Event {
	kept := q.events[q.from:]
	i, _ := slices.BinarySearchFunc(kept, seq, func(e Event, seq uint64) int {
		if e.Seq <= seq {
			return -1
		}
		return 1
	})
	return kept[i:]
}

// Changed returns a channel that is closed when the next event is recorded. Call Changed before
// Read. Otherwise, an event between the two calls is missed.
func (h *History) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.more == nil {
		h.more = make(chan struct{})
	}
	return h.more
}

// Read returns at most limit events after the event with the number since, in order. It also
// returns how many events after since were dropped. If limit is 0, it returns all events after
// since. If this process has not assigned the number since, an earlier process has, so Read starts
// with the first event.
func (h *History) Read(since uint64, limit int) (events []Event, missed uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if since < h.first || since >= h.next {
		since = h.first - 1
	}
	var queues [][]Event
	total := 0
	for _, q := range h.queues {
		if later := q.after(since); len(later) > 0 {
			queues = append(queues, later)
			total += len(later)
		}
	}
	if limit == 0 || limit > total {
		limit = total
	}
	events = make([]Event, 0, limit)
	for len(events) < limit {
		least := 0
		for i := range queues {
			if len(queues[least]) == 0 || len(queues[i]) > 0 && queues[i][0].Seq < queues[least][0].Seq {
				least = i
			}
		}
		events = append(events, queues[least][0])
		queues[least] = queues[least][1:]
	}
	last := h.next - 1
	if limit < total {
		last = events[limit-1].Seq
	}
	return events, last - since - uint64(len(events))
}
