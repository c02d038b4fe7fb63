package reserved_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/cmd/vipd/daemon/internal/reserved"
)

func addrs(all ...string) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// written writes what is reserved.
func written(f *reserved.Follower) (all []string) {
	for _, r := range f.All() {
		all = append(all, r.Addr.String()+" "+r.What)
	}
	return all
}

func same(t *testing.T, f *reserved.Follower, want ...string) {
	t.Helper()
	if got := written(f); !slices.Equal(got, want) {
		t.Errorf("reserved %q, want %q", got, want)
	}
}

const (
	ofEtcd     = " an address of etcd"
	gateway    = " a gateway of this node"
	nameServer = " a name server, which this node needs to find etcd"
)

// TestWritten: addresses that are written out are reserved from the start, with the gateways to them; name servers are not,
// which nobody has to ask.
func TestWritten(t *testing.T) {
	resolver := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolver, []byte("nameserver 192.168.1.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked []netip.Addr
	f := reserved.New(reserved.Options{
		Endpoints: []string{"https://10.1.0.1:2379", "https://[fd00::1]:2379", "http://127.0.0.1:2379", "http://localhost:2379", "unix:///run/etcd", "::"}, Resolver: resolver,
		Gateways: func(to []netip.Addr) []netip.Addr {
			asked = to
			return addrs("192.168.1.1", "fe80::1%eth0", "10.1.0.1")
		},
	})
	same(t, f, "10.1.0.1"+ofEtcd, "192.168.1.1"+gateway, "fd00::1"+ofEtcd, "fe80::1"+gateway)
	if want := addrs("10.1.0.1", "fd00::1", "198.51.100.1", "2001:db8::1"); !slices.Equal(asked, want) {
		t.Errorf("asked for the ways to %v, want %v", asked, want)
	}
	same(t, nil)
}

// TestFollows: names that can't be resolved yet are asked for again, their addresses are kept while nobody answers, and what
// has changed is told, once.
func TestFollows(t *testing.T) {
	resolver := filepath.Join(t.TempDir(), "resolv.conf")
	err := os.WriteFile(resolver, []byte("# comment\nnameserver 192.168.1.53\nnameserver 127.0.0.53\nsearch example\nnameserver\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards these
		var answer []netip.Addr
		lookups, told, way := 0, 0, "192.168.1.1"
		routed := func() string { mu.Lock(); defer mu.Unlock(); return way }
		f := reserved.New(reserved.Options{
			Endpoints: []string{"https://etcd.example:2379"}, Resolver: resolver,
			Gateways: func([]netip.Addr) []netip.Addr { return addrs(routed()) },
			Lookup: func(context.Context, string) ([]netip.Addr, error) {
				mu.Lock()
				defer mu.Unlock()
				if lookups++; answer == nil {
					return nil, errors.New("nobody answers")
				}
				return answer, nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx, func() { mu.Lock(); told++; mu.Unlock() }) }()
		later := func(d time.Duration) { mu.Unlock(); time.Sleep(d); synctest.Wait(); mu.Lock() }
		mu.Lock()
		later(time.Minute)
		same(t, f, "192.168.1.1"+gateway, "192.168.1.53"+nameServer)
		answer = addrs("10.1.0.1", "::ffff:10.1.0.2")
		later(15 * time.Second)
		known := []string{"10.1.0.1" + ofEtcd, "10.1.0.2" + ofEtcd, "192.168.1.1" + gateway, "192.168.1.53" + nameServer}
		same(t, f, known...)
		before := lookups
		answer = nil
		later(time.Hour)
		same(t, f, known...)
		if n := lookups - before; told != 1 || n < 11 || n > 13 {
			t.Errorf("told %d times, want once; %d lookups in an hour, want 12", told, n)
		}
		way = "192.168.1.2"
		later(15 * time.Second)
		same(t, f, known[0], known[1], "192.168.1.2"+gateway, known[3])
		if told != 2 {
			t.Errorf("told %d times of two changes", told)
		}
		mu.Unlock()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
