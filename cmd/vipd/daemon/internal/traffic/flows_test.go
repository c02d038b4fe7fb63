package traffic

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/test/fake"
	"vipd/test/wait"
)

// tracker is a dataplane that counts the bytes of conntrack's flows: all bytes of open flows, and
// the bytes of flows that ended after it started.
type tracker struct {
	*fake.Dataplane
	flows map[int]uint64
	grow  func() // adds bytes just before a reading
	ended uint64
	shut  bool // the dataplane has ended, so its counts no longer change
	fresh bool // the next call of Counters returns the previous counts
	last  []dataplane.FrontendCount
}

func (c *tracker) Counters() []dataplane.FrontendCount {
	if !c.shut && (!c.fresh || c.last == nil) {
		c.grow()
		f := counted("http", c.ended)
		for _, n := range c.flows {
			f.In, f.KeptIn = f.In+n, f.KeptIn+n
		}
		f.Out, f.KeptOut, f.Tracked = 2*f.In, 2*f.KeptIn, true
		c.last = []dataplane.FrontendCount{f}
	}
	return c.last
}

// world has flows, and a process's dataplanes that count them.
type world struct {
	r    *rand.Rand
	slow bool // dataplanes may return the same counts twice
	all  *Counters
	live []*tracker // the last tracker serves
	// flows holds the bytes of each open flow, and sent is the sum of bytes of all flows.
	flows map[int]uint64
	sent  uint64
	shown uint64
}

func (w *world) reads() bool {
	return slices.ContainsFunc(w.live, func(c *tracker) bool { return !c.shut })
}

func (w *world) send(n int) {
	more := uint64(w.r.IntN(1000))
	w.flows[n], w.sent = w.flows[n]+more, w.sent+more
}

// end ends a flow. Each dataplane in the lists live and more adds the flow's bytes to its field
// ended.
func (w *world) end(n int, more ...*tracker) {
	for _, c := range slices.Concat(w.live, more) {
		c.ended += w.flows[n]
	}
	delete(w.flows, n)
}

func (w *world) serve() {
	c := &tracker{flows: w.flows, grow: func() { w.send(w.r.IntN(5)) }}
	mode := []config.ModeName{config.NFTablesMode, config.IPTablesMode, config.UserspaceMode}[w.r.IntN(3)]
	if mode == config.UserspaceMode {
		c.shut = true
	} else if w.reads() && w.r.IntN(2) == 0 {
		w.end(w.r.IntN(5), c) // flows may end before the dataplane's counts are read
	}
	w.live = append(w.live, c)
	w.all.Begin(mode, c, w.r.IntN(2) == 0)
	c.fresh = w.slow
}

// stop ends the oldest dataplane after reading its counts once more.
func (w *world) stop(stays bool) {
	c := w.live[0]
	c.fresh = false
	c.Counters()
	c.shut = true
	w.all.End(c, stays)
	w.live = w.live[1:]
}

func (w *world) countedBytes() uint64 {
	for _, c := range w.live {
		c.fresh = w.slow && w.r.IntN(2) == 0
	}
	n := counts(w.all)[web()]
	for _, c := range w.live {
		c.fresh = w.slow
	}
	return n.In
}

// TestFlowsAreCountedOnce simulates random histories of flows. Modes that read conntrack replace
// each other, directly or with another mode in between, and processes exit or are killed. Counted
// bytes must equal sent bytes. If dataplanes return the same counts twice, counted bytes may be
// lower, but must never decrease.
func TestFlowsAreCountedOnce(t *testing.T) {
	for seed := range uint64(wait.Soak(120, 6000)) {
		w := &world{r: rand.New(rand.NewPCG(seed, 8)), slow: seed%2 == 1, flows: map[int]uint64{}}
		dir := t.TempDir()
		check := func() {
			got := w.countedBytes()
			if exact := !w.slow && w.reads(); got > w.sent || got < w.shown || exact && got != w.sent {
				t.Fatalf("seed %d: counted bytes = %d, want at most %d and at least the previous count %d", seed, got, w.sent, w.shown)
			}
			w.shown = got
		}
		for range 4 {
			w.all, w.live = &Counters{}, nil
			w.all.Open(dir, slog.New(slog.DiscardHandler))
			w.serve()
			for range w.r.IntN(30) {
				switch w.r.IntN(6) {
				case 0, 1, 2:
					w.send(w.r.IntN(5))
				case 3:
					if w.reads() { // otherwise no dataplane receives the flow's end
						w.end(w.r.IntN(5))
					}
				case 4:
					if len(w.live) < 3 {
						w.serve()
					}
				case 5:
					if len(w.live) > 1 {
						w.stop(false)
					}
				}
				check()
			}
			if w.r.IntN(2) == 0 { // the process is not killed
				for len(w.live) > 0 {
					w.stop(true)
				}
				w.all.Last()
			}
		}
	}
}
