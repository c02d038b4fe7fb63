package definitions

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// historyLength is the number of versions that the history keeps for each service.
const historyLength = 20

// HistoryEntry is a version of a service's definition.
type HistoryEntry struct {
	// N is the number of the version, counted from the service's first version.
	N int
	// At and By are when and by whom the version was written. Both are empty if another program
	// wrote it.
	At time.Time
	By string
	// Rollback is the number of the earlier version that was written again, or 0.
	Rollback int
	// Fields holds the service's fields. It is nil if the service was removed.
	Fields map[string]any
	// Revision is the revision at which the version was written. It is 0 if another program wrote
	// it.
	Revision int64
}

// entryText is an entry's value in etcd.
type entryText struct {
	At       time.Time       `json:"at,omitzero"`
	By       string          `json:"by,omitempty"`
	Trace    string          `json:"trace,omitempty"`
	Rollback int             `json:"rollback,omitempty"`
	Fields   json.RawMessage `json:"fields,omitempty"`
	// Found reports whether Apply found the version in etcd, where another program had written it.
	Found bool `json:"found,omitempty"`
}

// History returns the most recent versions of a service's definition, the oldest first. It omits
// entries that can't be parsed.
func (w *Writer) History(ctx context.Context, name balancer.Name) ([]HistoryEntry, error) {
	var out []HistoryEntry
	err := w.client.ReadFolder(ctx, schema.HistoryFolder+string(name)+"/", new(int64), func(number string, kv *mvccpb.KeyValue) {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > math.MaxInt32 { // another program wrote this entry, and the next number would be invalid
			return
		}
		e := HistoryEntry{N: n, Revision: kv.ModRevision}
		var text entryText
		if json.Unmarshal(kv.Value, &text) == nil {
			e.At = text.At
			e.By = text.By
			e.Rollback = text.Rollback
			if e.Fields, _ = schema.ParseObject(text.Fields); text.Found {
				e.Revision = 0
			}
		}
		out = append(out, e)
	})
	slices.SortFunc(out, func(a, b HistoryEntry) int { return cmp.Compare(a.N, b.N) })
	return out, err
}

// Traces returns the traces of changes to these services with a revision above after and up to
// until, the newest first.
func (w *Writer) Traces(ctx context.Context, services []string, after, until int64) (traces []string, err error) {
	at := map[string]int64{}
	for _, name := range services {
		folder := client.Folder(w.keys.HistoryOf(balancer.Name(name)))
		answer, err := w.client.Get(ctx, &etcdserverpb.RangeRequest{
			Key: []byte(folder.Key), RangeEnd: []byte(folder.End), MinModRevision: after + 1, MaxModRevision: until,
		})
		if err != nil {
			return nil, err
		}
		for _, kv := range answer.Kvs {
			var text entryText
			if json.Unmarshal(kv.Value, &text) == nil && text.Trace != "" {
				at[text.Trace] = max(at[text.Trace], kv.ModRevision)
			}
		}
	}
	return slices.SortedFunc(maps.Keys(at), func(a, b string) int { return cmp.Compare(at[b], at[a]) }), nil
}

// maxWritten is the maximum size in bytes of a service's text together with its history in one
// transaction. etcd accepts 1.5 MiB for the whole transaction. Because the history repeats the
// text, the text must also be shorter than maxServiceText.
const maxWritten = 1400 << 10

// Check returns the reason why Apply would refuse a change: a mistake, or the size of the
// transaction. The parameter stored is the stored service, or nil.
func (w *Writer) Check(ctx context.Context, c Change, stored *Stored) error {
	text, _, err := c.encode()
	if err != nil {
		return err
	}
	// The transaction is largest if the history is empty.
	if _, _, err = record(w.keys, c, text, stored, nil); err == nil || stored == nil {
		return err
	}
	past, err := w.History(ctx, c.Name)
	if err == nil {
		_, _, err = record(w.keys, c, text, stored, past)
	}
	return err
}

// record returns the operations that add a change to the history and remove the oldest entries. It
// also returns the condition that no other writer has added an entry with the same number. If
// another program wrote the service's current text, record also adds that text. It returns an error
// if the transaction is too large.
func record(keys schema.Keys, c Change, text []byte, before *Stored, past []HistoryEntry) (then []*etcdserverpb.RequestOp, ifs []*etcdserverpb.Compare, err error) {
	n, size := 1, len(text)
	if len(past) > 0 {
		n = past[len(past)-1].N + 1
	}
	add := func(e entryText, fields map[string]any) error {
		if fields != nil {
			if e.Fields, err = json.Marshal(fields); err != nil {
				return fmt.Errorf("encoding service %s: %w", c.Name, err)
			}
		}
		text, err := json.Marshal(e)
		key := keys.History(c.Name, n)
		then = append(then, client.Put(key, text, 0))
		ifs = append(ifs, client.Unchanged(key, 0))
		n = n + 1
		size += len(text)
		return err
	}
	if before != nil && before.Fields != nil && (len(past) == 0 || past[len(past)-1].Revision != before.Revision) {
		if err := add(entryText{Found: true}, before.Fields); err != nil {
			return nil, nil, err
		}
	}
	if err := add(entryText{At: time.Now().UTC().Truncate(time.Second), By: c.By, Trace: c.Trace, Rollback: c.Rollback}, c.Fields); err != nil {
		return nil, nil, err
	}
	if c.Fields != nil && size > maxWritten {
		return nil, nil, fmt.Errorf("service %s is too large: with its history, it needs %d bytes, and etcd accepts at most %d at once. Split the service, or "+
			"publish its endpoints separately (vipctl register)", c.Name, size, maxWritten)
	}
	for i, e := range past {
		if e.N <= n-1-historyLength && i < maxOps/2 {
			then = append(then, client.Remove(keys.History(c.Name, e.N)))
		}
	}
	return then, ifs, nil
}
