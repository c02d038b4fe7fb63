package etcd

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/store"
)

// Read reads everything at one revision, as a Source would publish it first. Defaults are those of the reader.
func Read(ctx context.Context, c *Client, defaults map[string]any) (store.Snapshot, error) {
	s := state{keys: c.keys}
	r := reader{keys: c.keys, defaults: defaults}
	limit, now := UsualTiming().PageKeys, time.Now()
	var denied []scope
	scopes := scopesOf(c.keys, "")
	for _, scope := range scopes {
		err := readScope(ctx, c.get, scope, &limit, &s.revision, func(answer *etcdserverpb.RangeResponse) error {
			if s.records.Len() > maxKeys {
				return fmt.Errorf("there are more than %d keys below %s: no more are possible", maxKeys, c.keys.prefix)
			}
			for _, record := range r.records(answer.Kvs, func(string) *record { return nil }) {
				s.put(record, now)
			}
			return nil
		})
		switch {
		case scope.optional() && Forbidden(err):
			denied = append(denied, scope)
		case err != nil:
			return store.Snapshot{}, err
		}
	}
	s.deny(scopes, denied, c.config)
	for folder := range s.counts.Keys() {
		subject, _ := c.keys.parse(string(folder)) // a folder is the key of nothing, but names its service
		s.settle(subject.of, now)
	}
	for h := range s.held.Keys() {
		s.settle(h.of, now)
	}
	out := s.snapshot()
	out.Problems, out.Connected = s.problems(), true
	return out, nil
}
