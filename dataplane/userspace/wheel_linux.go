package userspace

import "time"

// wheel holds the timers of a loop, at most one per connection, in slots of a tick. Setting a timer
// costs the same for any number of connections.
type wheel struct {
	slots [wheelSlots]timer // each slot is the head of a ring
	turn  int64             // the last tick whose timers have been visited
	count int
}

const wheelSlots = 512

// timer is an entry of a wheel.
type timer struct {
	prev, next *timer
	due        int64 // a tick
	owner      *conn
}

func ticksIn(d time.Duration) int64 { return int64((d + tick - 1) / tick) }

func (w *wheel) init(turn int64) {
	w.turn = turn
	for i := range w.slots {
		w.slots[i].prev, w.slots[i].next = &w.slots[i], &w.slots[i]
	}
}

func (w *wheel) set(t *timer, after time.Duration) {
	w.stop(t)
	t.due = w.turn + max(1, ticksIn(after)) + 1 // the current tick has begun
	head := &w.slots[t.due%wheelSlots]
	t.prev, t.next = head.prev, head
	head.prev.next, head.prev = t, t
	w.count++
}

func (w *wheel) stop(t *timer) {
	if t.next == nil {
		return
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
	w.count--
}

// advance calls expired for each timer that is due at or before the tick now.
func (w *wheel) advance(now int64, expired func(*conn)) {
	for w.turn < now {
		if w.count == 0 {
			w.turn = now
			return
		}
		w.turn++
		head := &w.slots[w.turn%wheelSlots]
		for t, last := head.next, head.prev; t != head; {
			next, end := t.next, t == last // timers that are set during the loop come after the last one
			if t.due <= w.turn {
				w.stop(t)
				expired(t.owner)
			}
			if end {
				break
			}
			t = next
		}
	}
}

// idle returns the number of ticks until the next slot that has timers.
func (w *wheel) idle() int64 {
	for i := int64(1); i <= wheelSlots; i++ {
		if head := &w.slots[(w.turn+i)%wheelSlots]; head.next != head {
			return i
		}
	}
	return wheelSlots
}
