package traffic

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/test/wait"
)

// tracker is a dataplane that counts the bytes of conntrack's flows: of those there are in full, and of those that ended since it began.
type tracker struct {
	dataplane.Dataplane
	flows map[int]uint64
	ended uint64
	shut  bool // from its end on it tells the same
	last  []dataplane.FrontendCount
}

func (c *tracker) DialRetries() (uint64, bool) { return 0, false }

func (c *tracker) Counters() []dataplane.FrontendCount {
	if !c.shut {
		f := counted("http", c.ended)
		for _, n := range c.flows {
			f.In, f.KeptIn = f.In+n, f.KeptIn+n
		}
		f.Out, f.KeptOut, f.Tracked = 2*f.In, 2*f.KeptIn, true
		c.last = []dataplane.FrontendCount{f}
	}
	return c.last
}

// TestFlowsAreCountedOnce has random histories of flows that begin, go on and end while modes that read conntrack take over from each other,
// at once or after one that does not, and processes from processes that end or are killed: what is counted is what was sent.
func TestFlowsAreCountedOnce(t *testing.T) {
	for seed := range uint64(wait.Soak(60, 3000)) {
		r := rand.New(rand.NewPCG(seed, 8))
		dir, flows, sent := t.TempDir(), map[int]uint64{}, uint64(0)
		var all *Counters
		var live []*tracker // the last one serves
		serve := func() {
			c := &tracker{flows: flows}
			mode := []config.ModeName{config.NFTablesMode, config.IPTablesMode, config.UserspaceMode}[r.IntN(3)]
			if mode == config.UserspaceMode {
				c = &tracker{shut: true}
			}
			live = append(live, c)
			all.Begin(mode, c, r.IntN(2) == 0)
		}
		end := func(stays bool) {
			live[0].Counters()
			live[0].shut = true
			all.End(live[0], stays)
			live = live[1:]
		}
		reads := func() bool { return slices.ContainsFunc(live, func(c *tracker) bool { return !c.shut }) }
		look := func() {
			if got := counts(all)[web()]; reads() && (got.In != sent || got.Out != 2*sent) {
				t.Fatalf("seed %d: %d and %d bytes are counted, want %d and %d", seed, got.In, got.Out, sent, 2*sent)
			}
		}
		for range 4 {
			all, live = &Counters{}, nil
			all.Open(dir, slog.New(slog.DiscardHandler))
			serve()
			for range r.IntN(30) {
				n, more := r.IntN(5), uint64(r.IntN(1000))
				switch r.IntN(6) {
				case 0, 1, 2:
					flows[n] += more
					sent += more
				case 3:
					if reads() { // nobody hears of its end otherwise
						for _, c := range live {
							c.ended += flows[n]
						}
						delete(flows, n)
					}
				case 4:
					if len(live) < 3 {
						serve()
					}
				case 5:
					if len(live) > 1 {
						end(false)
					}
				}
				look()
			}
			if r.IntN(2) == 0 { // it is not killed
				for len(live) > 0 {
					end(true)
				}
				all.Last()
			}
		}
	}
}
