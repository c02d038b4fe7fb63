package etcd

import (
	"context"

	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/fleet"
	"vipd/store/etcd/owners"
	"vipd/store/etcd/watch"
)

// Store is one connection for all that commands ask of etcd. Its methods may be called by several
// goroutines at once.
type Store struct {
	*definitions.Writer
	*fleet.Registry
	*owners.Admin
	client *client.Client
}

// NewStore returns what connects when it is first used. The error is one of the configuration.
func NewStore(c client.Config) (*Store, error) {
	client, err := client.NewClient(c)
	if err != nil {
		return nil, err
	}
	return &Store{definitions.NewWriter(client), fleet.NewRegistry(client), owners.NewAdmin(client), client}, nil
}

// Close ends the connection. Another question makes another.
func (s *Store) Close() error { return s.client.Close() }

// Read reads everything at one revision, as a Source would publish it first. Defaults are those of
// the reader.
func (s *Store) Read(ctx context.Context, defaults map[string]any) (store.Snapshot, error) {
	return watch.Read(ctx, s.client, defaults)
}
