package fleet

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// BoardOptions configures a HealthBoard.
type BoardOptions struct {
	client.Config
	// Log receives keys that can't be parsed. It may be nil.
	Log *slog.Logger
	// Patience is how long an outage of etcd must last before it is published. The default is 2 s.
	Patience time.Duration
	// Timing holds the intervals of the connection. If nil, the default intervals are used.
	Timing *client.Timing
}

const (
	boardPatience = 2 * time.Second
	// boardQuiet is how long changes are collected before they are published.
	boardQuiet = 10 * time.Millisecond
)

// HealthBoard follows a fleet's votes (PREFIX/health/) on its own connection, so nodes without
// fleet checks do not receive them.
type HealthBoard struct {
	options BoardOptions
	keys    schema.Keys
	timing  client.Timing
}

// NewHealthBoard returns a board that connects when Watch is called. It returns an error if the
// options are invalid.
func NewHealthBoard(o BoardOptions) (*HealthBoard, error) {
	if err := o.Check(); err != nil {
		return nil, fmt.Errorf("following the fleet's health checks: %w", err)
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Patience = cmp.Or(o.Patience, boardPatience)
	usual := client.UsualTiming()
	o.Timing = cmp.Or(o.Timing, &usual)
	keys, err := schema.NewKeys(o.Prefix)
	return &HealthBoard{o, keys, *o.Timing}, err
}

// Watch publishes the current board, and publishes it again after each change, until ctx ends. Each
// board comes with the connection's error, or nil. While etcd is unavailable, Watch publishes the
// last board with Connected set to false. If etcd can't be reached at the start, Watch publishes an
// empty board after Patience. The function publish must not block.
func (h *HealthBoard) Watch(ctx context.Context, publish func(quorum.Board, error)) {
	messages := make(chan client.Message, 16)
	scopes := []client.Scope{client.Folder(h.keys.Prefix + schema.HealthFolder)}
	l := client.NewLink(h.options.Config, h.keys, scopes, h.timing, h.options.Log, messages)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { l.Run(ctx) })
	w := boardWatch{HealthBoard: h, publish: publish, lost: h.timing.Now()}
	w.loop(ctx, messages)
}

// boardWatch is the state of one call to Watch. Only Watch's goroutine may use it.
type boardWatch struct {
	*HealthBoard
	publish func(quorum.Board, error)

	board quorum.Board
	// next is the board that a full read builds.
	next quorum.Board
	err  error
	// lost is when the connection was lost. changed is when the first unpublished change arrived.
	// Each is zero if there is nothing to publish.
	lost, changed time.Time
}

func (w *boardWatch) loop(ctx context.Context, messages <-chan client.Message) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(w.due())
		select {
		case <-ctx.Done():
			return
		case m := <-messages:
			w.process(m)
		case <-timer.C:
			w.publishDue()
		}
	}
}

// due returns the time until something must be published.
func (w *boardWatch) due() time.Duration {
	due := time.Hour
	if !w.lost.IsZero() {
		due = min(due, w.options.Patience-w.timing.Now().Sub(w.lost))
	}
	if !w.changed.IsZero() {
		due = min(due, boardQuiet-w.timing.Now().Sub(w.changed))
	}
	return max(due, 0)
}

// publishDue publishes the board if an outage or a change must be published now.
func (w *boardWatch) publishDue() {
	now := w.timing.Now()
	away := !w.lost.IsZero() && now.Sub(w.lost) >= w.options.Patience
	unread := !w.board.Connected && !w.lost.IsZero() // the first read is in progress, and patience has not passed
	if !away && (unread || w.changed.IsZero() || now.Sub(w.changed) < boardQuiet) {
		return
	}
	if away {
		w.board.Connected, w.lost = false, time.Time{}
	}
	w.changed = time.Time{}
	w.publish(w.board, w.err)
}

func (w *boardWatch) process(m client.Message) {
	if reads := m.Begin || m.Page != nil || m.End; reads && !w.lost.IsZero() {
		w.lost = w.timing.Now() // etcd answers, but reading a large board may take longer than the patience
	}
	switch {
	case m.Begin:
		w.next = quorum.Board{}
	case m.Page != nil:
		for _, kv := range m.Page {
			w.put(&w.next, kv)
		}
	case m.End:
		w.board.Nodes, w.board.Votes = w.next.Nodes, w.next.Votes
		w.next = quorum.Board{}
		w.noteChange()
	case m.Events != nil:
		for _, e := range m.Events {
			if e.Type == mvccpb.DELETE {
				w.erase(&w.board, string(e.Kv.Key))
			} else {
				w.put(&w.board, e.Kv)
			}
		}
		w.noteChange()
	case m.Steady:
		w.board.Connected = true
		w.err = nil
		w.lost = time.Time{}
		w.noteChange()
	case m.Away != nil:
		other := w.err == nil || w.err.Error() != m.Away.Error()
		w.err = m.Away
		switch {
		case w.board.Connected && w.lost.IsZero():
			w.lost = w.timing.Now()
		case w.lost.IsZero() && other: // the outage was already published
			w.noteChange()
		}
	}
}

func (w *boardWatch) noteChange() {
	if w.changed.IsZero() {
		w.changed = w.timing.Now()
	}
}

// put adds a key to a board. A key that can't be parsed counts as missing.
func (w *boardWatch) put(b *quorum.Board, kv *mvccpb.KeyValue) {
	p, err := readHealth(w.keys, string(kv.Key), kv.Value)
	switch {
	case err != nil:
		w.options.Log.Debug("a key of the fleet's health checks can't be read", "key", string(kv.Key), "err", err)
		w.erase(b, string(kv.Key))
	case p.checker != nil:
		b.Nodes = b.Nodes.Set(p.voteKey.Node, *p.checker)
	default:
		b.Votes = b.Votes.Set(p.voteKey, p.vote)
	}
}

// erase removes the vote or the node that a key describes from b.
func (w *boardWatch) erase(b *quorum.Board, key string) {
	switch voteKey, err := healthKey(w.keys, key); {
	case err != nil:
	case voteKey.Target == (balancer.Target{}):
		b.Nodes = b.Nodes.Delete(voteKey.Node)
	default:
		b.Votes = b.Votes.Delete(voteKey)
	}
}
