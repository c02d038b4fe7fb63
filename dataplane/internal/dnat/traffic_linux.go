package dnat

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
)

// volume is the numbers of bytes from and to clients.
type volume struct{ in, out uint64 }

// traffic counts flows in conntrack: live connections, and bytes if conntrack counts them. The
// kernel reports a flow's bytes when the flow ends.
type traffic struct {
	flows *Flows
	// conn is a separate connection, because changes must not wait while all flows are listed.
	conn *conntrack.Conn
	// started reports whether start was called. ends is nil if conntrack does not count bytes.
	started bool
	ends    *conntrack.Ends
	stop    context.CancelFunc
	running sync.WaitGroup
	looking sync.Mutex // held while the flows are counted

	mu sync.Mutex // guards the fields below; held only briefly, because reports of ended flows must not wait
	// ended holds the bytes of ended flows.
	ended map[counters.Port]volume
	// before holds the bytes of flows that had already ended at the last count, and live the bytes
	// of flows that still existed.
	before, live map[counters.Port]volume
	active       map[counters.BackendKey]uint64
	// shown is the last result for each port. asked is when the port's bytes were last requested
	// or, before any request, when prune first found the port.
	shown map[counters.Port]volume
	asked map[counters.Port]time.Time
	next  time.Time
}

func newTraffic(fl *Flows, conn *conntrack.Conn) *traffic {
	return &traffic{flows: fl, conn: conn, ended: map[counters.Port]volume{}, shown: map[counters.Port]volume{}, asked: map[counters.Port]time.Time{}}
}

// start subscribes to reports of ended flows, and starts the goroutine that reads them, if the
// sysctl net.netfilter.nf_conntrack_acct is enabled. The host may have enabled it for the fast
// path, after newTraffic.
func (t *traffic) start() {
	if t.started {
		return
	}
	t.started = true
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_acct")
	if err != nil || strings.TrimSpace(string(text)) != "1" {
		return
	}
	if t.ends, err = conntrack.Subscribe(); err != nil {
		t.flows.log.Warn("the bytes of connections are not counted", "err", err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.stop = cancel
	t.running.Go(func() {
		lost := false
		err := t.ends.Run(ctx, t.end, func() {
			if !lost {
				t.flows.log.Warn("connections end faster than vipd can count their bytes: the byte counters are too low")
			}
			lost = true
		})
		if err != nil {
			t.flows.log.Warn("the bytes of connections are no longer counted", "err", err)
		}
	})
}

// end adds an ended flow's bytes to its port.
func (t *traffic) end(flow *conntrack.Flow) {
	k, ok := t.flows.portOf(flow)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.ended[k]
	t.ended[k] = volume{v.in + flow.In, v.out + flow.Out}
}

// look counts the existing flows, unless they were counted recently or are being counted.
func (t *traffic) look(ctx context.Context) error {
	if !t.looking.TryLock() {
		return nil
	}
	defer t.looking.Unlock()
	started := time.Now()
	t.mu.Lock()
	next, before := t.next, maps.Clone(t.ended) // the list will not contain flows that have ended by now
	t.mu.Unlock()
	if started.Before(next) {
		return nil
	}
	active := map[counters.BackendKey]uint64{}
	live := map[counters.Port]volume{}
	idle := idle()
	err := t.conn.Each(ctx, conntrack.Filter{}, func(flow *conntrack.Flow) error {
		k, ok := t.flows.portOf(flow)
		if !ok {
			return nil
		}
		if isLive(flow, idle) {
			active[counters.BackendKey{Port: k, Addr: flow.Backend()}]++
		}
		v := live[k]
		live[k] = volume{v.in + flow.In, v.out + flow.Out}
		return nil
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.before = before
		t.active = active
		t.live = live
	}
	t.next = counters.NextReading(started)
	return err
}

// lookNow counts the existing flows even if they were counted recently. After an error, the last
// result remains valid.
func (t *traffic) lookNow() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	t.mu.Lock()
	t.next = time.Time{}
	t.mu.Unlock()
	_ = t.look(ctx)
}

// lookTime limits how long the last count before an exit may take.
const lookTime = 2 * time.Second

// bytes returns a port's bytes at the last count, and the part that belongs to existing flows.
// Flows that have ended since are added at the next count, so results never decrease.
func (t *traffic) bytes(k counters.Port) (all, kept volume) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.before[k]
	live := t.live[k]
	shown := t.shown[k]
	shown = volume{max(shown.in, before.in+live.in), max(shown.out, before.out+live.out)}
	t.shown[k], t.asked[k] = shown, time.Now()
	return shown, live
}

// prune removes the bytes of ports whose bytes were not requested within the last
// [counters.Retention].
func (t *traffic) prune(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.ended {
		if _, known := t.asked[k]; !known {
			t.asked[k] = now
		}
	}
	for k, at := range t.asked {
		if now.Sub(at) > counters.Retention {
			delete(t.asked, k)
			delete(t.ended, k)
			delete(t.shown, k)
		}
	}
}

// activeAt returns a backend's number of live connections.
func (t *traffic) activeAt(k counters.BackendKey) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active[k]
}

func (t *traffic) close() error {
	if t.stop != nil {
		t.stop()
	}
	t.running.Wait()
	failed := t.conn.Close()
	if t.ends != nil {
		failed = errors.Join(failed, t.ends.Close())
	}
	return failed
}
