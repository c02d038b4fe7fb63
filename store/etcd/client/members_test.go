package client

import (
	"context"
	"testing"
	"time"

	"vipd/store/etcd/schema"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestMembersPreferHistory configures members of two clusters as endpoints. The member whose
// revision is not behind the last seen revision must be used. The other member must be used only if
// the first member does not answer.
func TestMembersPreferHistory(t *testing.T) {
	t.Parallel()
	seen, other := etcdkit.Start(t, etcdkit.Options{}), etcdkit.Start(t, etcdkit.Options{})
	client := seen.Client()
	for range 5 {
		if _, err := client.Put(t.Context(), "x", ""); err != nil {
			t.Fatal(err)
		}
	}
	s := NewMembers(Config{Endpoints: append(seen.Endpoints(), other.Endpoints()...), Prefix: "/vipd"}, schema.Keys{Prefix: "/vipd"})
	defer s.Close()
	s.seen.Store(6)
	reach := func() string {
		s.Close()
		m, err := s.Reach(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return m.endpoint
	}
	for range 10 {
		if got := reach(); got != seen.Endpoints()[0] {
			t.Fatalf("member in use = %s, want the member that is not behind", got)
		}
	}
	seen.Kill()
	if got := reach(); got != other.Endpoints()[0] {
		t.Errorf("member in use = %s, want the only member that answers", got)
	}
}

// TestMembersMove pauses the process of the member in use. Another member must answer the waiting
// request, and must be used from then on.
func TestMembersMove(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{Members: 3})
	s := NewMembers(Config{Endpoints: c.Endpoints(), Prefix: "/vipd"}, schema.Keys{Prefix: "/vipd"})
	defer s.Close()
	before, err := s.Reach(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range c.Members {
		if c.URL(m.Addr()) == before.endpoint {
			m.Pause()
			defer m.Resume()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(time.Minute))
	defer cancel()
	var asked []string
	if err := s.Do(ctx, func(ctx context.Context, m *Member) error {
		asked = append(asked, m.endpoint)
		_, err := m.prove(ctx, "x")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if asked[0] != before.endpoint || asked[len(asked)-1] == before.endpoint {
		t.Errorf("members that received the request = %q, want the paused member first and another member last", asked)
	}
	if s.current.Load() == before {
		t.Error("the paused member is still in use")
	}
}
