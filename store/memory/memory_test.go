package memory_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/memory"
	"vipd/store/storetest"
	"vipd/test/wait"
)

func TestSource(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Place { return place{memory.New()} })
}

type place struct{ source *memory.Source }

func (p place) Source() store.Source { return p.source }

func (p place) Write(name balancer.Name, fields map[string]any) { p.source.Define(name, fields, nil) }

func (p place) Delete(name balancer.Name) { p.source.Delete(name) }

func TestEndpointsAndOverrides(t *testing.T) {
	s := memory.New()
	id := balancer.EndpointID{Service: "web", ID: "a"}
	target := balancer.Target{Service: "web", Addr: netip.MustParseAddr("192.168.1.1")}
	endpoint, override := &balancer.Endpoint{Weight: 1}, &balancer.Override{By: "me"}
	s.SetEndpoint(id, endpoint)
	s.SetOverride(target, override)
	before := s.Snapshot()
	if before.Endpoints.At(id) != endpoint || before.Overrides.At(target) != override {
		t.Fatalf("got endpoint %v and override %v", before.Endpoints.At(id), before.Overrides.At(target))
	}
	s.SetEndpoint(id, &balancer.Endpoint{Weight: 1})
	s.SetOverride(target, &balancer.Override{By: "me"})
	if after := s.Snapshot(); after.Revision != before.Revision || !after.Same(before) || after.Endpoints.At(id) != endpoint {
		t.Errorf("equal values made another state: %+v, before %+v", after, before)
	}
	s.DeleteEndpoint(id)
	s.DeleteOverride(target)
	if after := s.Snapshot(); after.Endpoints.Len() != 0 || after.Overrides.Len() != 0 || after.Revision != before.Revision+2 {
		t.Errorf("after deleting both: %+v", after)
	}
}

func TestDisconnect(t *testing.T) {
	s := memory.New()
	ctx, cancel := context.WithCancel(t.Context())
	snapshots, done := make(chan store.Snapshot, 10), make(chan error, 1)
	go func() { done <- s.Watch(ctx, func(s store.Snapshot) { snapshots <- s }) }()
	if first := <-snapshots; !first.Connected || first.Err != nil {
		t.Errorf("first %+v, want a connected one", first)
	}
	away := errors.New("away")
	s.Set(&balancer.Service{Name: "web"})
	s.Disconnect(away)
	var last store.Snapshot
	wait.For(t, 10*time.Second, "the disconnected state", func() bool {
		select {
		case last = <-snapshots:
		default:
		}
		return last.Err == away && !last.Connected && last.Services.Has("web")
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Watch returned %v, want nil", err)
	}
}
