package etcd_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store/etcd/watch"
	"vipd/store/statedir"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// manyServices is the number of services in a large fleet. "make test" uses a tenth of the number
// that "make soak" uses.
var manyServices = wait.Soak(1000, 10_000)

const (
	manyEndpoints = 10
	// firstWithin is the maximum time until the first snapshot. It is long because the machine may
	// be busy.
	firstWithin = 2 * time.Minute
)

// fill writes manyServices services, each with manyEndpoints registered endpoints.
func fill(t testing.TB, client *clientv3.Client, prefix string) {
	t.Helper()
	var ops []clientv3.Op
	flush := func() {
		if _, err := client.Txn(context.Background()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
		ops = ops[:0]
	}
	for i := range manyServices {
		name := fmt.Sprintf("service-%05d", i)
		ops = append(ops, clientv3.OpPut(prefix+"/services/"+name, fmt.Sprintf(
			`{"vips":["10.%d.%d.%d"],"ports":[{"port":80,"target_port":8080}],"health":{"type":"http","path":"/healthz"}}`, 96+i>>16, i>>8&255, i&255)))
		for j := range manyEndpoints {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("%s/endpoints/%s/%d", prefix, name, j), manyEndpoint(i, j, 1)))
		}
		if len(ops) > 100 {
			flush()
		}
	}
	flush()
}

func manyEndpoint(i, j, weight int) string {
	return fmt.Sprintf(`{"address":"172.%d.%d.%d","port":8080,"zone":"z%d","weight":%d}`, 16+j, i>>8, i&255, j%3, weight)
}

// TestScale reads the first state of a large fleet, and then follows changes to single endpoints. A
// change must cause little traffic, which must not depend on the size of the fleet.
func TestScale(t *testing.T) {
	c := etcdkit.Start(t, etcdkit.Options{})
	client := c.Client()
	p := &place{t: t, client: client, config: configAt(c, 0)}
	fill(t, client, p.config.Prefix)
	relay := etcdkit.NewRelay(t, c.Members[0].Addr())
	config := p.config
	config.Endpoints = []string{c.URL(relay.Addr())}
	dir := statedir.New(t.TempDir(), func() {})
	source, err := watch.New(watch.Options{Config: config, StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	base := memory()
	began := time.Now()
	f := follow(t, source)
	first := f.wait("the first state", connected)
	took := time.Since(began)
	t.Logf("first state of %d services and %d endpoints: %s, %d MiB held, %d MiB read", first.Services.Len(), first.Endpoints.Len(),
		took.Round(time.Millisecond), (memory()-base)>>20, relay.Bytes()>>20)
	if took > firstWithin || first.Services.Len() != manyServices || first.Endpoints.Len() != manyServices*manyEndpoints {
		t.Errorf("services = %d, endpoints = %d after %s; want all of them within %s", first.Services.Len(), first.Endpoints.Len(), took, firstWithin)
	}
	testSingleChanges(t, p, f, relay)
	testStream(t, p, f)
	f.stop()
	if err := dir.Close(); err != nil {
		t.Error(err)
	}
	began = time.Now()
	again, err := watch.New(watch.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	g := follow(t, again)
	want := g.wait("a fresh reading", connected)
	if err := agree(f.last(), want); err != nil {
		t.Errorf("the last snapshot differs from a fresh read, which took %s: %v", time.Since(began), err)
	}
}

// testSingleChanges changes one endpoint at a time, and waits for each change.
func testSingleChanges(t *testing.T, p *place, f *follower, relay *etcdkit.Relay) {
	const n = 50
	bytes := relay.Bytes()
	var slowest, sum time.Duration
	for i := range n {
		before := f.last()
		began := time.Now()
		revision := p.put(fmt.Sprintf("/endpoints/service-%05d/3", i), manyEndpoint(i, 3, 7))
		after := f.reaches(revision)
		took := time.Since(began)
		slowest, sum = max(slowest, took), sum+took
		changes := 0
		for range snap.Diff(before.Endpoints, after.Endpoints) {
			changes++
		}
		if changes != 1 || after.Services != before.Services {
			t.Errorf("changed endpoints = %d, want 1 and no changed service", changes)
		}
	}
	each := (relay.Bytes() - bytes) / n
	t.Logf("one changed endpoint: %d bytes, from put to published %s on average, %s at most", each, sum/n, slowest)
	if each > 2000 {
		t.Errorf("traffic for a changed endpoint = %d bytes, want at most 2000", each)
	}
}

// testStream changes 200 endpoints a second for one or several seconds.
func testStream(t *testing.T, p *place, f *follower) {
	const rate = 200
	seconds := wait.Soak(1, 5)
	before, base := f.count(), memory()
	ticker := time.NewTicker(time.Second / rate)
	defer ticker.Stop()
	var revision int64
	for i := range seconds * rate {
		<-ticker.C
		revision = p.put(fmt.Sprintf("/endpoints/service-%05d/%d", i*7%manyServices, i%manyEndpoints), manyEndpoint(i, i%manyEndpoints, 2+i%50))
	}
	began := time.Now()
	last := f.reaches(revision)
	t.Logf("%d changes in %d snapshots; the last was published %s after it was made; %d MiB more held",
		seconds*rate, f.count()-before, time.Since(began), (int64(memory())-int64(base))>>20)
	if last.Endpoints.Len() != manyServices*manyEndpoints || !last.Endpoints.Has(balancer.EndpointID{Service: "service-00007", ID: "1"}) {
		t.Errorf("endpoints = %d, want %d", last.Endpoints.Len(), manyServices*manyEndpoints)
	}
}

// memory returns the number of bytes in use on the heap, after a garbage collection.
func memory() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
