package watch

import (
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/store"
	"vipd/store/etcd/client"
)

// BenchmarkFirst processes the pages of a first read of 10,000 services with 10 endpoints each.
func BenchmarkFirst(b *testing.B) {
	pages := manyPages(10_000, 10)
	b.ReportAllocs()
	for b.Loop() {
		w := benched(b)
		w.process(client.Message{Begin: true})
		for _, page := range pages {
			w.process(client.Message{Page: page})
		}
		w.process(client.Message{End: true, Revision: 1})
		if w.state.Endpoints.Len() != 100_000 {
			b.Fatal(w.state.Endpoints.Len())
		}
	}
}

// BenchmarkChange processes a change to one of 100,000 endpoints.
func BenchmarkChange(b *testing.B) {
	w := benched(b)
	w.process(client.Message{Begin: true})
	for _, page := range manyPages(10_000, 10) {
		w.process(client.Message{Page: page})
	}
	w.process(client.Message{End: true, Revision: 1})
	b.ReportAllocs()
	for i := int64(2); b.Loop(); i++ {
		kv := &mvccpb.KeyValue{
			Key: fmt.Appendf(nil, "/vipd/endpoints/service-%05d/3", i*7%10_000), Value: fmt.Appendf(nil, `{"address":"172.16.0.1","weight":%d}`, i%1000),
			CreateRevision: 1, ModRevision: i,
		}
		w.process(client.Message{Events: []*mvccpb.Event{{Kv: kv}}, Revision: i})
	}
}

// benched returns a watchRun without a link to etcd. The benchmark itself passes the link's
// messages.
func benched(b *testing.B) *watchRun {
	s, err := New(Options{Config: client.Config{Endpoints: []string{"http://127.0.0.1:2379"}, Prefix: "/vipd"}})
	if err != nil {
		b.Fatal(err)
	}
	return &watchRun{Source: s, publish: func(store.Snapshot) {}, state: state{keys: s.keys}, reader: reader{keys: s.keys}}
}

// manyPages returns the pages of a full read of many services, each with the given number of
// endpoints.
func manyPages(services, endpoints int) [][]*mvccpb.KeyValue {
	var pages [][]*mvccpb.KeyValue
	var page []*mvccpb.KeyValue
	add := func(key, text string) {
		page = append(page, &mvccpb.KeyValue{Key: []byte(key), Value: []byte(text), CreateRevision: 1, ModRevision: 1})
		if len(page) == 5000 {
			pages, page = append(pages, page), nil
		}
	}
	for i := range services {
		name := fmt.Sprintf("service-%05d", i)
		add("/vipd/services/"+name, fmt.Sprintf(`{"vips":["10.%d.%d.%d"],"ports":[{"port":80,"target_port":8080}],"health":{"type":"http","path":"/healthz"}}`, 96+i>>16, i>>8&255, i&255))
	}
	for i := range services {
		for j := range endpoints {
			add(fmt.Sprintf("/vipd/endpoints/service-%05d/%d", i, j), fmt.Sprintf(`{"address":"172.%d.%d.%d","port":8080,"zone":"z%d","weight":1}`, 16+j, i>>8, i&255, j%3))
		}
	}
	return append(pages, page)
}
