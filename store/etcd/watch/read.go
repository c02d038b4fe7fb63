package watch

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Read reads everything at one revision, as a Source would first publish it.
func Read(ctx context.Context, c *client.Client, defaults map[string]any) (store.Snapshot, error) {
	s := state{keys: c.Keys}
	r := reader{keys: c.Keys, defaults: defaults}
	limit, now := client.UsualTiming().PageKeys, time.Now()
	var denied []client.Scope
	scopes := client.Scopes(c.Keys, "")
	for _, scope := range scopes {
		err := client.ReadScope(ctx, c.Get, scope, &limit, &s.Revision, func(answer *etcdserverpb.RangeResponse) error {
			if s.records.Len() > schema.MaxKeys {
				return fmt.Errorf("too many keys: more than %d are below %s", schema.MaxKeys, c.Keys.Prefix)
			}
			for _, record := range r.records(answer.Kvs, func(string) *record { return nil }) {
				s.put(record, now)
			}
			return nil
		})
		switch {
		case scope.Optional() && client.Forbidden(err):
			denied = append(denied, scope)
		case err != nil:
			return store.Snapshot{}, err
		}
	}
	s.deny(scopes, denied, c.Config)
	for folder := range s.counts.Keys() {
		subject, _ := c.Keys.Parse(string(folder)) // a folder is not a valid key, but names its service
		s.settle(subject.Of, now)
	}
	for h := range s.held.Keys() {
		s.settle(h.service, now)
	}
	out := s.Snapshot
	out.Problems, out.Connected = s.problems(), true
	return out, nil
}
