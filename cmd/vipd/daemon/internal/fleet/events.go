package fleet

import (
	"log/slog"
	"time"

	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/transitions"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// connection records when etcd is reached or lost.
func (f *Member) connection(revision int64, err error) {
	e := events.Event{Kind: events.Store, Text: "etcd is reachable", Revision: revision}
	f.mu.Lock()
	switch now := time.Now(); {
	case err != nil:
		e.Level = slog.LevelWarn
		e.Text = "etcd is unreachable; serving its last state"
		e.Cause = err.Error()
		f.lost = now
	case !f.lost.IsZero():
		e.Text = "etcd is reachable again"
		e.Was = "away"
		e.Lasted = now.Sub(f.lost)
		f.lost = time.Time{}
	}
	f.followed = f.followed || err == nil
	f.mu.Unlock()
	f.o.Events.Record(e)
}

// Began is called when the first state is compiled. If etcd has never been reached by then, it
// records that.
func (f *Member) Began(s *model.State, now time.Time) {
	f.mu.Lock()
	away := !f.followed && f.lost.IsZero()
	if away {
		f.lost = now
	}
	f.mu.Unlock()
	if !away {
		return
	}
	e := events.Event{Kind: events.Store, Level: slog.LevelWarn, Text: "etcd has been unreachable since vipd started; serving the last good state"}
	if !s.Snapshot.Kept {
		e.Text = "etcd has been unreachable since vipd started, and there is no last good state"
	}
	if s.Snapshot.Err != nil {
		e.Cause = s.Snapshot.Err.Error()
	}
	f.o.Events.Record(e)
}

// configured records a change to this node's configuration in etcd, and passes the configuration to
// Options.Configured.
func (f *Member) configured(set schema.NodeConfig) {
	if f.set != nil {
		for _, e := range transitions.NodeSet(*f.set, set) {
			f.o.Events.Record(e)
		}
	}
	f.set = &set
	f.o.Configured(set)
}

// report records whether other nodes of the fleet see this node.
func (f *Member) report(err error) {
	err = client.Advised(err)
	f.mu.Lock()
	was, now := f.trouble, time.Now()
	f.trouble = err
	e := events.Event{Kind: events.Store, At: now, Text: "the fleet sees this node as " + f.o.Name}
	tell := !f.seen || was != nil
	if !f.unseen.IsZero() {
		e.Was, e.Lasted = "unseen", now.Sub(f.unseen)
	}
	if err != nil {
		tell = was == nil
		e = events.Event{Kind: events.Store, At: now, Level: slog.LevelWarn, Text: "the fleet does not see this node", Cause: err.Error()}
		if tell {
			f.unseen = now
		}
	} else {
		f.seen, f.unseen = true, time.Time{}
	}
	f.mu.Unlock()
	if tell {
		f.o.Events.Record(e)
	}
}
