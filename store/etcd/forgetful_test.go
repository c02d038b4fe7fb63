package etcd_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"vipd/store"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// forgetful is a proxy that has lost one of the watches that its clients share. It assigns this
// watch to each client that requests its range, but sends no events on it. Otherwise it behaves
// like etcd.
type forgetful struct {
	etcdserverpb.UnimplementedWatchServer
	etcdserverpb.UnimplementedKVServer
	client *clientv3.Client
	// lost is the first key in the range of the watch that the proxy loses. forgets is set while
	// that watch is lost. confirms is set if the proxy still confirms its creation.
	lost     string
	forgets  atomic.Bool
	confirms bool
	// stuck reports whether the proxy creates no watches, and sends nothing on existing watches.
	stuck atomic.Bool
	// member reports whether the proxy behaves like a member: it numbers watches like a member, and
	// reports progress unless it is stuck.
	member bool
	// asked counts the requests for the lost watch.
	asked atomic.Int64
}

// listen makes the proxy serve on a free port until the test ends, and returns its URL.
func (p *forgetful) listen(t *testing.T) (url string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, p)
	etcdserverpb.RegisterWatchServer(server, p)
	go func() { _ = server.Serve(listener) }() // Serve returns after Stop
	t.Cleanup(server.Stop)
	return "http://" + listener.Addr().String()
}

func (p *forgetful) Range(ctx context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return etcdserverpb.NewKVClient(p.client.ActiveConnection()).Range(ctx, r)
}

func (p *forgetful) Watch(stream etcdserverpb.Watch_WatchServer) error {
	var mu sync.Mutex
	send := func(r *etcdserverpb.WatchResponse) {
		mu.Lock()
		defer mu.Unlock()
		_ = stream.Send(r) // Recv reports when the client has disconnected
	}
	for next := int64(0); ; next++ {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		create := request.GetCreateRequest()
		if create == nil {
			revision := int64(1)
			if !p.stuck.Load() {
				revision = 1 << 40
			}
			send(&etcdserverpb.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: revision}, WatchId: -1})
			continue
		}
		id := next
		if p.member {
			id = create.WatchId
		}
		lost := func() bool { return string(create.Key) == p.lost && p.forgets.Load() || p.stuck.Load() }
		if p.stuck.Load() {
			continue
		}
		if lost() {
			p.asked.Add(1)
			if p.confirms {
				send(&etcdserverpb.WatchResponse{Header: &etcdserverpb.ResponseHeader{Revision: create.StartRevision}, WatchId: id, Created: true})
			}
			continue
		}
		watch := p.client.Watch(stream.Context(), string(create.Key), clientv3.WithRange(string(create.RangeEnd)), clientv3.WithRev(create.StartRevision), clientv3.WithCreatedNotify())
		go func(id int64) {
			for r := range watch {
				if lost() {
					continue
				}
				answer := &etcdserverpb.WatchResponse{Header: r.Header, WatchId: id, Created: r.Created}
				for _, e := range r.Events {
					answer.Events = append(answer.Events, (*mvccpb.Event)(e))
				}
				send(answer)
			}
		}(id)
	}
}

// TestProxyForgets follows etcd through a proxy that has lost a watch before the source starts. The
// source must not wait for this watch forever, and must find every change.
func TestProxyForgets(t *testing.T) {
	t.Parallel()
	for name, confirms := range map[string]bool{"confirmed": true, "not confirmed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := etcdkit.Start(t, etcdkit.Options{})
			p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
			p.put("/services/web", web)
			p.put("/endpoints/web/a", `{"address":"192.168.1.12"}`)
			proxy := &forgetful{client: p.client, lost: p.config.Prefix + "/endpoints/", confirms: confirms}
			proxy.forgets.Store(true)
			config := p.config
			config.Endpoints = []string{proxy.listen(t)}
			f := follow(t, newSource(t, watch.Options{Config: config}))
			f.wait("the first state", func(s store.Snapshot) bool { return s.Endpoints.Len() == 1 })
			f.reaches(p.put("/endpoints/web/a", `{"address":"192.168.1.13"}`))
			f.reaches(p.put("/endpoints/web/b", `{"address":"192.168.1.14"}`))
			if proxy.asked.Load() == 0 {
				t.Error("the source never requested the lost watch")
			}
		})
	}
}

// TestProxyForgetsLater follows etcd through a proxy that loses one of its confirmed watches, while
// its other watches continue. The source must find every change, even in the range of the lost
// watch.
func TestProxyForgetsLater(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*place) int64{
		"changed": func(p *place) int64 { return p.put("/endpoints/web/a", `{"address":"192.168.1.13"}`) },
		"new":     func(p *place) int64 { return p.put("/endpoints/web/b", `{"address":"192.168.1.14"}`) },
		"gone":    func(p *place) int64 { p.remove("/endpoints/web/a"); return p.now() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := etcdkit.Start(t, etcdkit.Options{})
			p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
			p.put("/endpoints/web/a", `{"address":"192.168.1.12"}`)
			p.put("/services/web", web)
			proxy := &forgetful{client: p.client, lost: p.config.Prefix + "/endpoints/", confirms: true}
			config := p.config
			config.Endpoints = []string{proxy.listen(t)}
			f := follow(t, newSource(t, watch.Options{Config: config}))
			f.wait("the first state", connected)
			proxy.forgets.Store(true)
			f.reaches(change(p))
			f.reaches(p.put("/endpoints/web/c", `{"address":"192.168.1.15"}`)) // another change in the range of the lost watch
		})
	}
}

// TestProxyStuck follows etcd through a proxy that stops creating watches, but answers reads. A
// proxy of etcd 3.4 can get into this state if etcd restarts under load. The source must find
// changes by reading.
func TestProxyStuck(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.put("/services/web", web)
	proxy := &forgetful{client: p.client}
	config := p.config
	config.Endpoints = []string{proxy.listen(t)}
	f := follow(t, newSource(t, watch.Options{Config: config}))
	f.wait("the first state", connected)
	proxy.stuck.Store(true)
	f.waitForRevision(p.put("/endpoints/web/a", `{"address":"192.168.1.13"}`))
	f.waitForRevision(p.put("/endpoints/web/b", `{"address":"192.168.1.14"}`))
	proxy.stuck.Store(false)
	f.reaches(p.put("/endpoints/web/c", `{"address":"192.168.1.15"}`))
}

// TestWatchBehind follows a member that still answers reads, but whose watches stop sending events.
// The source must abandon these watches and follow another member.
func TestWatchBehind(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	relay.Cut() // so the source starts at the member "behind"
	p.client = c.Client()
	behind := &forgetful{client: p.client, member: true}
	config := p.config
	config.Endpoints = []string{behind.listen(t), c.URL(relay.Addr())}
	f := follow(t, newSource(t, watch.Options{Config: config}))
	f.wait("the first state", connected)
	relay.Heal()
	f.reaches(p.put("/endpoints/web/a", `{"address":"192.168.1.13"}`))
	behind.stuck.Store(true)
	n := relay.Connections()
	f.reaches(p.put("/endpoints/web/a", `{"address":"192.168.1.14"}`))
	if relay.Connections() == n {
		t.Error("new connections to the other member = 0, want at least 1")
	}
}
