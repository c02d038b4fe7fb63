package client

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/store/etcd/schema"
	"vipd/test/etcdkit"
)

// TestSilentStreamLeavesItsMember moves requests to another member just before the watches at the
// former member count as silent. The silence must not affect the new member, which must stay in
// use.
func TestSilentStreamLeavesItsMember(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	one := c.Endpoints()[0]
	two := strings.Replace(one, "127.0.0.1", "localhost", 1)
	config := Config{Endpoints: []string{one, two}, Prefix: "/vipd"}
	keys := schema.Keys{Prefix: "/vipd"}
	timing := UsualTiming()
	timing.Ask = 50 * time.Millisecond
	var silent, calls atomic.Int64
	timing.Now = func() time.Time { // on each call, this clock advances by more than a watch may be silent
		return time.Now().Add(time.Duration(silent.Load()*calls.Add(1)) * 10 * time.Second)
	}
	messages := make(chan Message)
	l := NewLink(config, keys, Scopes(keys, ""), timing, slog.New(slog.DiscardHandler), messages)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running.Go(func() { l.Run(ctx) })
	for m := range messages {
		if m.Steady {
			break
		}
	}
	former := l.members.current.Load()
	defer former.close()
	next, err := config.open(map[string]string{one: two, two: one}[former.endpoint])
	if err != nil {
		t.Fatal(err)
	}
	l.members.current.Store(next)
	silent.Store(1)
	for m := range messages {
		if m.Away != nil {
			if !errors.Is(m.Away, errSilent) {
				t.Fatalf("stream error = %v, want %v", m.Away, errSilent)
			}
			break
		}
	}
	if got := l.members.current.Load(); got != next {
		t.Errorf("member in use = %v, want the member that now serves requests", got)
	}
}
