package failover

import "vipd/balancer/failover/local"

// writer sends transactions, and passes their outcomes to the callers of write.
type writer struct {
	*env
	etcd *view
	// learn processes a record that a transaction has changed.
	learn   func(RecordChange)
	waiting map[int]func(Outcome, int64)
	last    int // ID
	// claiming reports whether a transaction that claims VIPs is pending.
	claiming bool
	// refused is the newest revision that this node knew when it sent a transaction that etcd
	// refused, usually because of a newer change. Until this node receives a newer revision, or
	// until the time patient, it neither claims nor hands over VIPs.
	refused int64
	patient local.Time
}

func newWriter(e *env, etcd *view, learn func(RecordChange)) *writer {
	return &writer{env: e, etcd: etcd, learn: learn, waiting: map[int]func(Outcome, int64){}}
}

// nextID returns an ID for the next Write or Unbind.
func (w *writer) nextID() int {
	w.last++
	return w.last
}

// write starts a transaction. The function then is called with its outcome and revision.
func (w *writer) write(a Write, then func(Outcome, int64)) {
	a.ID = w.nextID()
	known := w.etcd.revision
	w.waiting[a.ID] = func(o Outcome, revision int64) {
		if o == Refused || o == Unsent {
			w.refused, w.patient = known, w.now.Add(w.o.Timing.Beat)
		}
		then(o, revision)
	}
	w.do(a)
}

// answered processes the outcome of a transaction.
func (w *writer) answered(id int, o Outcome, revision int64) {
	then := w.waiting[id]
	delete(w.waiting, id)
	if then != nil {
		then(o, revision)
	}
}

// apply applies a successful transaction to this node's view, without waiting for etcd's watch.
func (w *writer) apply(a *Write, revision int64) {
	for _, k := range a.Delete {
		w.learn(RecordChange{Key: k, Revision: revision})
	}
	for _, p := range a.Put {
		w.learn(RecordChange{Key: p.Key, Revision: revision, Text: p.Text})
	}
}

// behind reports whether etcd would probably refuse another transaction, because this node's view
// is out of date.
func (w *writer) behind() bool { return w.etcd.revision == w.refused && w.now < w.patient }
