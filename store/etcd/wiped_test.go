package etcd_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/store"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
)

// TestWipedEtcdKeepsServices wipes etcd and restarts the source. The last services must stay in use
// until the services that are written to the wiped etcd count as complete. When all services are
// then deleted on purpose, none may stay in use.
func TestWipedEtcdKeepsServices(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	p.put("/services/api", `{"vips":["10.96.0.12"],"ports":[{"port":80}]}`)
	for range 20 {
		p.put("/elsewhere", "x") // so etcd's revision is lower after the wipe
	}
	p.put("/overrides/web/192.168.1.11", `{"draining":true}`)
	options, dir := watch.Options{Config: p.config}, t.TempDir()
	f := followWithState(t, options, dir)
	before := f.wait("the first state", func(s store.Snapshot) bool { return connected(s) && s.Services.Len() == 2 })
	held := func(s store.Snapshot) bool {
		return s.Connected && len(s.Problems) == 1 && strings.Contains(s.Problems[0].Text, "etcd was wiped, or restored from a backup, and lacks services: ")
	}
	expect := func(s store.Snapshot) {
		t.Helper()
		problems := s.Problems
		s.Problems = nil
		if err := agree(s, before); err != nil || !strings.Contains(problems[0].Text, ": the 2 services of revision ") {
			t.Errorf("the snapshot changed after the wipe: %v; problems = %v, want one about 2 services", err, problems)
		}
	}
	relay.Cut()
	c.Members[0].Stop()
	c.Members[0].Wipe()
	c.Members[0].Start()
	p.put("/endpoints/web/b", `{"address":"192.168.1.99"}`) // as a registrar that has already reconnected
	relay.Heal()
	expect(f.wait("the wiped services", held))
	f.stop()

	f = followWithState(t, options, dir)
	expect(f.wait("the wiped services, after a restart", held))
	p.put("/services/new", `{"vips":["10.96.0.13"],"ports":[{"port":80}]}`)
	p.put("/services/web", web)
	s := f.wait("the new history", func(s store.Snapshot) bool { return len(s.Problems) == 0 })
	if s.Services.Len() != 2 || !s.Services.Has("new") || s.Endpoints.Len() != 1 || s.Overrides.Len() != 0 {
		t.Errorf("after services were written again: services = %d, endpoints = %d, overrides = %d, want 2, 1, 0", s.Services.Len(), s.Endpoints.Len(), s.Overrides.Len())
	}

	p.try("remove all", func(ctx context.Context) error {
		_, err := p.client.Delete(ctx, p.config.Prefix+"/", clientv3.WithPrefix())
		return err
	})
	s = f.wait("the end of all services", func(s store.Snapshot) bool { return s.Services.Len() == 0 })
	if len(s.Problems) > 0 {
		t.Errorf("after all services were deleted: problems = %v, want none", s.Problems)
	}
	f.stop()
}

// TestHalfWrittenEtcdKeepsServices reconnects a source to a wiped etcd to which only some services
// have been written again. Services that are still missing from etcd must stay in use.
func TestHalfWrittenEtcdKeepsServices(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	p.put("/services/api", `{"vips":["10.96.0.12"],"ports":[{"port":80}]}`)
	source := newSource(t, watch.Options{Config: p.config, Timing: hastened(refill(time.Hour))})
	f := follow(t, source)
	f.wait("the first state", func(s store.Snapshot) bool { return connected(s) && s.Services.Len() == 2 })
	relay.Cut()
	f.wait("the outage", func(s store.Snapshot) bool { return !s.Connected })
	c.Members[0].Stop()
	c.Members[0].Wipe()
	c.Members[0].Start()
	p.put("/services/new", `{"vips":["10.96.0.13"],"ports":[{"port":80}]}`)
	p.put("/services/web", web)
	relay.Heal()
	s := f.wait("etcd", connected)
	if !s.Services.Has("api") || !s.Services.Has("web") || len(s.Problems) != 1 {
		t.Errorf("services = %d, want api and web among them; problems = %v, want one", s.Services.Len(), s.Problems)
	}
}

// TestRestoredEtcdKeepsServices restores etcd from a backup while no source runs, and then writes
// more revisions than were lost. A source that starts afterwards must keep using the services that
// are missing from the backup.
func TestRestoredEtcdKeepsServices(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	m := c.Members[0]
	m.Stop()
	backup := m.Backup()
	m.Start()
	p.put("/services/api", `{"vips":["10.96.0.12"],"ports":[{"port":80}]}`)
	options, dir := watch.Options{Config: p.config}, t.TempDir()
	f := followWithState(t, options, dir)
	f.wait("the first state", func(s store.Snapshot) bool { return connected(s) && s.Services.Has("api") })
	f.stop()
	m.Stop()
	m.Restore(backup)
	m.Start()
	for range 20 {
		p.put("/elsewhere", "x")
	}
	f = followWithState(t, options, dir)
	s := f.wait("etcd", func(s store.Snapshot) bool { return s.Connected })
	if !s.Services.Has("api") || len(s.Problems) != 1 {
		t.Errorf("services = %d, want api among them; problems = %v, want one", s.Services.Len(), s.Problems)
	}
}

// TestRestartAfterInvalidText writes a service whose text is not valid UTF-8, stops the source, and
// deletes another service. The restarted source must not mistake etcd for another history, so it
// must remove the deleted service.
func TestRestartAfterInvalidText(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	p.put("/services/api", `{"vips":["10.96.0.12"],"ports":[{"port":80}],"unknown":{"owner":"M`+"\xfc"+`ller"}}`)
	options, dir := watch.Options{Config: p.config}, t.TempDir()
	f := followWithState(t, options, dir)
	f.wait("the first state", func(s store.Snapshot) bool { return connected(s) && s.Services.Has("api") && s.Services.Has("web") })
	f.stop()
	p.remove("/services/web")
	f = followWithState(t, options, dir)
	s := f.wait("etcd", func(s store.Snapshot) bool { return s.Connected })
	if s.Services.Has("web") || !s.Services.Has("api") {
		t.Errorf("services = %d, want only api; problems = %v", s.Services.Len(), s.Problems)
	}
}
