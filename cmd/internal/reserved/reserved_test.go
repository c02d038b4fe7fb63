package reserved_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/reserved"
	"vipd/cmd/internal/sockets"
)

func addrs(all ...string) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// written returns the reserved addresses with their descriptions.
func written(f *reserved.Follower) (all []string) {
	for _, r := range f.All() {
		if r.Port == 0 {
			all = append(all, r.Addr.String()+" "+r.Description)
		}
	}
	return all
}

func wantReserved(t *testing.T, f *reserved.Follower, want ...string) {
	t.Helper()
	if got := written(f); !slices.Equal(got, want) {
		t.Errorf("reserved = %q, want %q", got, want)
	}
}

const (
	ofEtcd     = " an address of etcd"
	gateway    = " a gateway of this node"
	nameServer = " a name server, which this node needs to find etcd"
)

// TestWritten configures etcd URLs that contain addresses. The addresses and the gateways to them
// must be reserved from the start. Name servers must not be reserved, because no URL contains a
// host name.
func TestWritten(t *testing.T) {
	resolver := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolver, []byte("nameserver 192.168.1.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var listed []netip.Addr
	f := reserved.New(reserved.Options{
		Endpoints: []string{"https://10.1.0.1:2379", "https://[fd00::1]:2379", "http://127.0.0.1:2379", "http://localhost:2379", "unix:///run/etcd", "::"}, Resolver: resolver,
		Gateways: func(to []netip.Addr) []netip.Addr {
			listed = to
			return addrs("192.168.1.1", "fe80::1%eth0", "10.1.0.1")
		},
	})
	wantReserved(t, f, "10.1.0.1"+ofEtcd, "192.168.1.1"+gateway, "fd00::1"+ofEtcd, "fe80::1"+gateway)
	if want := addrs("10.1.0.1", "fd00::1", "198.51.100.1", "2001:db8::1"); !slices.Equal(listed, want) {
		t.Errorf("addresses passed to Gateways = %v, want %v", listed, want)
	}
	wantReserved(t, nil)
}

// TestFollows resolves etcd's host name. If the lookup fails, it must be retried, and the previous
// addresses must remain reserved. Each change must be reported once.
func TestFollows(t *testing.T) {
	resolver := filepath.Join(t.TempDir(), "resolv.conf")
	err := os.WriteFile(resolver, []byte("# comment\nnameserver 192.168.1.53\nnameserver 127.0.0.53\nsearch example\nnameserver\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the variables below
		var answer []netip.Addr
		lookups, changes, way := 0, 0, "192.168.1.1"
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
		go func() { ended <- f.Run(ctx, func() { mu.Lock(); changes++; mu.Unlock() }) }()
		later := func(d time.Duration) { mu.Unlock(); time.Sleep(d); synctest.Wait(); mu.Lock() }
		mu.Lock()
		later(time.Minute)
		wantReserved(t, f, "192.168.1.1"+gateway, "192.168.1.53"+nameServer)
		answer = addrs("10.1.0.1", "::ffff:10.1.0.2")
		later(15 * time.Second)
		known := []string{"10.1.0.1" + ofEtcd, "10.1.0.2" + ofEtcd, "192.168.1.1" + gateway, "192.168.1.53" + nameServer}
		wantReserved(t, f, known...)
		before := lookups
		answer = nil
		later(time.Hour)
		wantReserved(t, f, known...)
		if n := lookups - before; changes != 1 || n < 11 || n > 13 {
			t.Errorf("changes = %d, want 1; lookups in an hour = %d, want 12", changes, n)
		}
		way = "192.168.1.2"
		later(15 * time.Second)
		wantReserved(t, f, known[0], known[1], "192.168.1.2"+gateway, known[3])
		if changes != 2 {
			t.Errorf("changes = %d, want 2", changes)
		}
		mu.Unlock()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// ports returns the reserved ports with their descriptions.
func ports(f *reserved.Follower) (all []string) {
	for _, r := range f.All() {
		if r.Port != 0 {
			all = append(all, strings.TrimPrefix(fmt.Sprintf("%s:%d/%s %s", r.Addr, r.Port, r.Proto, r.Description), "invalid IP"))
		}
	}
	return all
}

// TestPorts opens and closes sockets. etcd's ports must always be reserved, and other programs'
// ports must be reserved while the programs listen and for a minute afterwards. This process's
// sockets, clients' sockets, and sockets on loopback addresses must not count.
func TestPorts(t *testing.T) {
	const program = " a program on this node listens on it"
	socket := func(at, inode string, proto balancer.Protocol) sockets.Socket {
		a := netip.MustParseAddrPort(at)
		return sockets.Socket{At: balancer.Key{Addr: a.Addr(), Port: balancer.PortRange(a.Port()), Proto: proto}, Inode: inode}
	}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the variables below
		open, own, listed := []sockets.Socket{socket("127.0.0.1:7000", "1", balancer.TCP), socket("0.0.0.0:22", "2", balancer.TCP), socket("192.168.1.5:53", "3", balancer.UDP)}, map[string]bool{}, 0
		f := reserved.New(reserved.Options{
			Endpoints: []string{"https://127.0.0.1:12379", "https://10.1.0.1"}, HTTP: "192.168.1.5:9100",
			Sockets: func() []sockets.Socket { mu.Lock(); defer mu.Unlock(); return slices.Clone(open) },
			Own:     func() map[string]bool { mu.Lock(); defer mu.Unlock(); listed++; return maps.Clone(own) },
		})
		always := []string{":2379/tcp it is one of etcd's ports", ":2380/tcp it is one of etcd's ports", ":12379/tcp it is one of etcd's ports", "192.168.1.5:9100/tcp vipd's own HTTP listener is there"}
		want := func(what string, programs ...string) {
			t.Helper()
			if got, want := ports(f), slices.Concat(always, programs); !slices.Equal(got, want) {
				t.Errorf("%s: reserved = %q, want %q", what, got, want)
			}
		}
		want("at first", ":22/tcp"+program)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Run(ctx, func() {}) }()
		// later changes the open sockets, and lets the follower run for d.
		later := func(d time.Duration, change func()) {
			mu.Lock()
			change()
			mu.Unlock()
			time.Sleep(d)
			synctest.Wait()
		}
		later(time.Second, func() {})
		want("a UDP socket that stays", ":22/tcp"+program, "192.168.1.5:53/udp"+program)
		later(10*time.Second, func() {
			own["4"] = true
			open = append(open, socket("192.168.1.5:80", "4", balancer.TCP), socket("0.0.0.0:40000", "5", balancer.UDP))
		})
		before := listed
		later(10*time.Second, func() { open = slices.DeleteFunc(open, func(s sockets.Socket) bool { return s.Inode == "5" }) })
		want("what this process and a client have", ":22/tcp"+program, "192.168.1.5:53/udp"+program)
		later(10*time.Second, func() { open = slices.DeleteFunc(open, func(s sockets.Socket) bool { return s.Inode < "4" }) })
		if listed != before {
			t.Errorf("without a new socket: calls to Own = %d, want 0", listed-before)
		}
		want("programs that start again", ":22/tcp"+program, "192.168.1.5:53/udp"+program)
		later(time.Minute, func() {})
		want("programs that have ended")
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
