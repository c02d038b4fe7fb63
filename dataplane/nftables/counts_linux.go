package nftables

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/nft"
)

// counts is what is remembered of the kernel's counters. An element counts the first packets of connections, and begins anew
// when it is replaced: what it had goes to the readings as ended before.
type counts struct {
	// counter is a separate connection: reading many elements takes time, for which a change must not wait.
	counter *nft.Conn

	// reading is held while all counters are read with it, and guards vain: how many readings in a row were.
	reading  sync.Mutex
	vain     int
	readings *counters.Readings
}

// countTime bounds one reading of the flows that are there.
const countTime = 10 * time.Second

// Counters implements dataplane.Dataplane.
func (d *Dataplane) Counters() []dataplane.FrontendCount {
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	var all []map[counters.Backend]counters.Count
	for _, y := range d.families {
		all = append(all, y.counted())
	}
	return d.Tracker.Counters(ctx, all...)
}

// total is what the connections to a backend of a frontend are counted as.
func total(label string, backend netip.AddrPort) counters.Backend {
	service, port, _ := strings.Cut(label, "/")
	return counters.Backend{Port: counters.Port{Service: balancer.Name(service), Name: port}, Addr: backend}
}

// mostVain is how many readings in a row may be in vain because frontends are changed meanwhile: changes wait for the next one.
const mostVain = 3

// counted returns all counts so far, or those of the last reading while frontends are changed or the kernel was read just
// now. The result is not changed any more.
func (y *family) counted() map[counters.Backend]counters.Count {
	began := time.Now()
	shown, due := y.readings.Shown()
	if !due || !y.reading.TryLock() {
		return shown
	}
	defer y.reading.Unlock()
	if y.vain++; y.vain > mostVain {
		y.mu.Lock()
		defer y.mu.Unlock()
		live, err := y.readCounts(y.labelsLocked())
		if err != nil {
			return shown
		}
		y.vain = 0
		return y.readings.Read(live, began)
	}
	if !y.mu.TryLock() {
		return shown
	}
	labels, epoch := y.labelsLocked(), y.epoch
	y.mu.Unlock()
	live, err := y.readCounts(labels)
	if err != nil || !y.mu.TryLock() {
		return shown
	}
	defer y.mu.Unlock()
	if y.epoch != epoch { // a part of what was read has ended, and the list may lack others
		return shown
	}
	y.vain = 0
	return y.readings.Read(live, began)
}

// labelsLocked are what connections to frontends are counted as.
func (y *family) labelsLocked() map[balancer.Key]string {
	labels := make(map[balancer.Key]string, len(y.fronts))
	for k, f := range y.fronts {
		labels[k] = f.label
	}
	return labels
}

// readCounts reads what the elements have counted.
func (y *family) readCounts(labels map[balancer.Key]string) (map[counters.Backend]counters.Count, error) {
	live := map[counters.Backend]counters.Count{}
	for _, set := range []*nft.Set{y.schema.eps, y.schema.backends} {
		elems, err := y.counter.Elements(y.schema.table, set.Name)
		if err != nil {
			return nil, err
		}
		for _, e := range elems {
			if k, _, ok := keyOf(e.Key, y.schema.table.Family); ok {
				at := total(labels[k], backendOf(e.Data))
				live[at] = live[at].Plus(counters.Count{All: e.Packets, Kept: e.Packets})
			}
		}
	}
	return live, nil
}

// endLocked ends what was counted at elements that are gone.
func (y *family) endLocked(gone []nft.FoundElem) {
	for _, x := range gone {
		k, _, ok := keyOf(x.Key, y.schema.table.Family)
		if f := y.fronts[k]; ok && f != nil {
			y.readings.End(total(f.label, backendOf(x.Data)), x.Packets)
		}
	}
}

// countLastLocked ends what all elements have counted, because they go.
func (y *family) countLastLocked() {
	for _, set := range []*nft.Set{y.schema.eps, y.schema.backends} {
		elems, _ := y.table.Elements(y.schema.table, set.Name)
		y.endLocked(elems)
	}
	y.readings.Read(map[counters.Backend]counters.Count{}, time.Now()) // what is said where the table is gone
}
