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

// Store is the connection that commands use for all their requests to etcd. Its methods are safe
// for concurrent use.
type Store struct {
	*definitions.Writer
	*fleet.Registry
	*owners.Admin
	client *client.Client
}

// NewStore returns a store that connects when it is first used. It returns an error if the
// configuration is invalid.
func NewStore(c client.Config) (*Store, error) {
	client, err := client.NewClient(c)
	if err != nil {
		return nil, err
	}
	return &Store{definitions.NewWriter(client), fleet.NewRegistry(client), owners.NewAdmin(client), client}, nil
}

// Close closes the connection. The next request opens a new connection.
func (s *Store) Close() error { return s.client.Close() }

// Read reads everything at one revision, and returns it as a Source would first publish it. The
// parameter defaults holds the reader's [defaults].
func (s *Store) Read(ctx context.Context, defaults map[string]any) (store.Snapshot, error) {
	return watch.Read(ctx, s.client, defaults)
}
