package dnat

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
)

// frontends returns those that are applied.
func (fl *Flows) frontends() map[balancer.Key]*balancer.Frontend {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return maps.Clone(fl.wanted)
}

// frontend returns the one that is applied at k; nil means none.
func (fl *Flows) frontend(k balancer.Key) *balancer.Frontend {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.wanted[k]
}

// leadsTo reports whether a backend is one of the frontend's, or was. A flow to another target is not of these rules:
// userspace mode, before a switch, has led it to its own port.
func (fl *Flows) leadsTo(f *balancer.Frontend, backend netip.AddrPort) bool {
	if f.Backend(backend) != nil {
		return true
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.leaving[f.Key].counts(backend)
}

// volume is bytes from and to clients.
type volume struct{ in, out uint64 }

// traffic counts what conntrack knows: live connections, and, where it accounts for them, bytes. Those of a flow are
// told when it ends.
type traffic struct {
	flows *Flows
	// conn is its own: a list of all flows takes time, for which a change must not wait.
	conn *conntrack.Conn
	// ends is nil where conntrack does not count bytes.
	ends    *conntrack.Ends
	stop    context.CancelFunc
	running sync.WaitGroup
	looking sync.Mutex // held by who counts the flows

	mu sync.Mutex // guards what follows; never held for long, because the ends of flows do not wait
	// ended are the bytes of flows that have ended.
	ended map[counters.Port]volume
	// before and live are the bytes of flows that had ended when those there are were last counted, and of these.
	before, live map[counters.Port]volume
	active       map[counters.Backend]uint64
	// shown is what was last said of each port, and asked when its bytes were last asked for, or had to be remembered.
	shown map[counters.Port]volume
	asked map[counters.Port]time.Time
	next  time.Time
}

// newTraffic subscribes to the ends of flows where net.netfilter.nf_conntrack_acct is on.
func newTraffic(fl *Flows, conn *conntrack.Conn) (*traffic, error) {
	t := &traffic{flows: fl, conn: conn, ended: map[counters.Port]volume{}, shown: map[counters.Port]volume{}, asked: map[counters.Port]time.Time{}}
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_acct")
	if err != nil || strings.TrimSpace(string(text)) != "1" {
		return t, nil
	}
	t.ends, err = conntrack.Subscribe()
	return t, err
}

// start begins to take in the ends of flows.
func (t *traffic) start() {
	if t.ends == nil || t.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.stop = cancel
	t.running.Go(func() {
		lost := false
		err := t.ends.Run(ctx, t.end, func() {
			if !lost {
				t.flows.log.Warn("connections end faster than their bytes can be counted: some are missing from the counters of bytes")
			}
			lost = true
		})
		if err != nil {
			t.flows.log.Warn("bytes are not counted any more", "err", err)
		}
	})
}

// end adds the bytes of a flow.
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

// portOf returns the port that a flow is counted to: that of the frontend it was made by, even if that is gone now. What does not lead
// to a backend was counted by the mode that led it.
func (fl *Flows) portOf(flow *conntrack.Flow) (counters.Port, bool) {
	if !flow.Status.Has(conntrack.DstNAT) {
		return counters.Port{}, false
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	k := flow.Frontend()
	if l := fl.leaving[k]; l.counts(flow.Backend()) {
		return l.port, true
	}
	if f := fl.wanted[k]; f != nil && f.Backend(flow.Backend()) != nil {
		return counters.Port{Service: f.Service, Name: f.Port}, true
	}
	return counters.Port{}, false
}

// look counts the flows there are, unless that was done just now, or is being done.
func (t *traffic) look(ctx context.Context) error {
	if !t.looking.TryLock() {
		return nil
	}
	defer t.looking.Unlock()
	started := time.Now()
	t.mu.Lock()
	next, before := t.next, maps.Clone(t.ended) // what has ended by now is not among what is listed
	t.mu.Unlock()
	if started.Before(next) {
		return nil
	}
	active, live, idle := map[counters.Backend]uint64{}, map[counters.Port]volume{}, idle()
	err := t.conn.Each(ctx, conntrack.Filter{}, func(flow *conntrack.Flow) error {
		k, ok := t.flows.portOf(flow)
		if !ok {
			return nil
		}
		if flow.State != "time-wait" && flow.State != "close" && !idle(flow) {
			active[counters.Backend{Port: k, Addr: flow.Backend()}]++
		}
		v := live[k]
		live[k] = volume{v.in + flow.In, v.out + flow.Out}
		return nil
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.before, t.active, t.live = before, active, live
	}
	t.next = counters.NextReading(started)
	return err
}

// lookNow is look, however soon after another. What was last seen is better than nothing.
func (t *traffic) lookNow() {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	t.mu.Lock()
	t.next = time.Time{}
	t.mu.Unlock()
	_ = t.look(ctx)
}

// lookTime bounds the last look of a process that ends.
const lookTime = 2 * time.Second

// idle returns what tells whether a flow of UDP has had no packet for dataplane.IdleAfter: by then so much has passed of the
// time that each packet gives it (net.netfilter.nf_conntrack_udp_timeout, or with _stream if it is assured).
func idle() func(*conntrack.Flow) bool {
	read := func(name string) time.Duration {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/" + name)
		n, _ := strconv.Atoi(strings.TrimSpace(string(text))) // 0, where it can't be read: no flow is idle
		return time.Duration(n) * time.Second
	}
	short, long := read("nf_conntrack_udp_timeout"), read("nf_conntrack_udp_timeout_stream")
	return func(f *conntrack.Flow) bool {
		whole := short
		if f.Status.Has(conntrack.Assured) {
			whole = long
		}
		return f.Proto == balancer.UDP && whole-f.Left >= dataplane.IdleAfter
	}
}

// bytes returns the bytes of a port when the flows were last counted, and of these those of flows that are there. Those of a flow
// that ended meanwhile come with the next time: what was said once stays.
func (t *traffic) bytes(k counters.Port) (all, kept volume) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, live, shown := t.before[k], t.live[k], t.shown[k]
	shown = volume{max(shown.in, before.in+live.in), max(shown.out, before.out+live.out)}
	t.shown[k], t.asked[k] = shown, time.Now()
	return shown, live
}

// prune forgets the bytes of ports that were not asked for in as long as connections are remembered of what is gone.
func (t *traffic) prune(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.ended {
		if _, known := t.asked[k]; !known {
			t.asked[k] = now
		}
	}
	for k, at := range t.asked {
		if now.Sub(at) > counters.Memory {
			delete(t.asked, k)
			delete(t.ended, k)
			delete(t.shown, k)
		}
	}
}

// activeAt returns the live connections of a backend.
func (t *traffic) activeAt(k counters.Backend) uint64 {
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
