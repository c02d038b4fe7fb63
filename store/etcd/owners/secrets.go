package owners

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"vipd/balancer/lib/wake"
	"vipd/store/etcd/client"
)

// secrets is the value of ownership/key.
type secrets struct {
	Key      []byte `json:"key"`
	Previous []byte `json:"previous,omitempty"`
}

func (s secrets) list() (all [][]byte) {
	for _, k := range [][]byte{s.Key, s.Previous} {
		if len(k) > 0 {
			all = append(all, k)
		}
	}
	return all
}

func newSecret() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // Read never fails
	return b
}

// RekeyOwnership replaces the heartbeat key in three steps, with a pause after the first and the
// second. All hosts first receive the next key, then sign with it, and finally refuse the previous
// key.
func (o *Admin) RekeyOwnership(ctx context.Context, pause time.Duration) error {
	next := newSecret()
	err := o.editSecrets(ctx, func(s secrets) (secrets, error) {
		if len(s.Key) == 0 {
			return s, errors.New("there is no heartbeat key yet: the first vipd owner creates it")
		}
		return secrets{Key: s.Key, Previous: next}, nil // hosts accept the next key but do not sign with it yet
	})
	if err != nil {
		return err
	}
	if wake.Sleep(ctx, pause); ctx.Err() != nil {
		return fmt.Errorf("hosts still sign heartbeats with the previous key: run the command again: %w", ctx.Err())
	}
	if err := o.editSecrets(ctx, func(s secrets) (secrets, error) {
		if !bytes.Equal(s.Previous, next) {
			return s, errRekeyed
		}
		return secrets{Key: next, Previous: s.Key}, nil
	}); err != nil {
		return err
	}
	if wake.Sleep(ctx, pause); ctx.Err() != nil {
		return fmt.Errorf("hosts still accept the previous key: run the command again: %w", ctx.Err())
	}
	return o.editSecrets(ctx, func(s secrets) (secrets, error) {
		if !bytes.Equal(s.Key, next) {
			return s, errRekeyed
		}
		return secrets{Key: next}, nil
	})
}

var errRekeyed = errors.New("another command has replaced the heartbeat key in the meantime")

// editSecrets changes the heartbeat keys.
func (o *Admin) editSecrets(ctx context.Context, change func(secrets) (secrets, error)) error {
	_, err := o.client.Edit(ctx, o.keys.Secrets(), func(old []byte) (client.Edited, error) {
		var s secrets
		if len(old) > 0 {
			if err := json.Unmarshal(old, &s); err != nil {
				return client.Edited{}, fmt.Errorf("reading %s: %w", o.keys.Secrets(), err)
			}
		}
		s, err := change(s)
		if err != nil {
			return client.Edited{}, err
		}
		text, err := json.Marshal(s)
		return client.Edited{Text: text}, err
	})
	return err
}
