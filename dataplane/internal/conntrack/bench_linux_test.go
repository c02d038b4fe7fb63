package conntrack

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
)

// full is a table of n flows, half of each family, to 1,000 frontends.
func full(b *testing.B, n int) *table {
	tab := scratch(b)
	flows := make([]Flow, n)
	for i := range flows {
		flows[i] = numbered(i)
	}
	tab.create(b, whole, flows...)
	return tab
}

// numbered is flow i of a full table.
func numbered(i int) Flow {
	k := frontend(i % 1000)
	client := netip.AddrFrom4([4]byte{10, 1, byte(i >> 16), byte(i >> 8)})
	backend := netip.AddrFrom4([4]byte{10, 2, 0, 1})
	if k.Addr.Is6() {
		client = netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8)})
		backend = netip.MustParseAddr("fd02::1")
	}
	from := netip.AddrPortFrom(client, uint16(1024+i))
	f := Flow{
		Proto: k.Proto, Status: SeenReply,
		Orig: Tuple{from, k.AddrPort()}, Reply: Tuple{netip.AddrPortFrom(backend, k.Port), from},
	}
	if i%1000 == 0 {
		f.Status = 0
	}
	return f
}

func frontend(i int) balancer.Key {
	k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: uint16(80 + i%10), Proto: balancer.TCP}
	if i%4 >= 2 {
		k.Proto = balancer.UDP
	}
	if i%2 == 1 {
		k.Addr = netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x96, 14: byte(i >> 8), 15: byte(i)})
	}
	return k
}

func BenchmarkEach(b *testing.B) {
	const n = 100_000
	tab := full(b, n)
	for name, f := range map[string]Filter{
		"all":       {},
		"udp4":      {Family: inet.IPv4, Proto: balancer.UDP},
		"unreplied": {Unreplied: true},
		"frontend4": {Proto: frontend(0).Proto, Dst: frontend(0).Addr, Port: frontend(0).Port},
		"frontend6": {Proto: frontend(1).Proto, Dst: frontend(1).Addr, Port: frontend(1).Port},
	} {
		b.Run(fmt.Sprintf("%s of %d", name, n), func(b *testing.B) {
			b.ReportAllocs()
			found := 0
			for b.Loop() {
				if err := tab.Each(b.Context(), f, func(*Flow) error { found++; return nil }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(found)/float64(b.N), "flows/op")
		})
	}
}

func BenchmarkCut(b *testing.B) {
	const n = 100_000
	tab := full(b, n)
	for _, keys := range []int{1, 4, 16, 250} {
		for name, stale := range map[string]func(*Flow) bool{"none": func(*Flow) bool { return false }, "all": nil} {
			b.Run(fmt.Sprintf("%s of %d frontends", name, keys), func(b *testing.B) {
				b.ReportAllocs()
				wanted := map[balancer.Key]bool{}
				var back []Flow
				for i := range keys {
					wanted[frontend(4*i)] = true // of one family and protocol
				}
				for i := range n {
					if f := numbered(i); stale == nil && wanted[f.Frontend()] {
						back = append(back, f)
					}
				}
				cut := 0
				for b.Loop() {
					m, err := tab.Cut(b.Context(), wanted, stale)
					if err != nil || m != len(back) {
						b.Fatalf("cut %d, %v; want %d", m, err, len(back))
					}
					cut += m
					b.StopTimer()
					tab.create(b, whole, back...)
					b.StartTimer()
				}
				b.ReportMetric(float64(cut)/float64(b.N), "flows/op")
			})
		}
	}
}

// BenchmarkEnds is what it costs the kernel to end flows that were answered, while nobody listens, or somebody who wants
// only the others.
func BenchmarkEnds(b *testing.B) {
	const n = 20_000
	for name, filter := range map[string][]unix.SockFilter{"nobody": nil, "unreplied": unrepliedOnly()} {
		b.Run(name, func(b *testing.B) {
			tab := scratch(b)
			if filter != nil {
				var s *Ends
				if err := tab.ns.Do(func() (err error) { s, err = subscribeTo(filter, groupDestroy); return err }); err != nil {
					b.Fatal(err)
				}
				defer s.Close()
			}
			flows := make([]Flow, n)
			for i := range flows {
				flows[i] = numbered(1000*i/999 + 1)
			}
			for b.Loop() {
				b.StopTimer()
				tab.create(b, whole, flows...)
				b.StartTimer()
				tab.flush(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/flow")
		})
	}
}

// BenchmarkUnanswered is what a look for connections without an answer costs, and which part of a core the looks use with the pauses
// between them, in a table of 100,000 flows. At 10,000 new connections a second with 1 in 1,000, or 1 in 10, unanswered, as many of these
// wait at a time.
func BenchmarkUnanswered(b *testing.B) {
	const n = 100_000
	for _, silent := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprintf("%d of %d", silent, n), func(b *testing.B) {
			tab := scratch(b)
			flows := make([]Flow, n)
			for i := range flows {
				flows[i] = numbered(1000*i/999 + 1) // which have a reply
				if i < silent {
					flows[i].Proto, flows[i].Status, flows[i].State = balancer.TCP, 0, "syn-sent"
				}
			}
			tab.create(b, whole, flows...)
			var u *Unanswered
			err := tab.ns.Do(func() (err error) {
				u, err = NewUnanswered(false, func(f *Flow) (balancer.Target, bool) { return balancer.Target{Addr: f.Backend().Addr()}, true }, func(Suspect) {})
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = u.conn.Close() })
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := threadTime()
			for b.Loop() {
				if err := u.look(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			look := (threadTime() - before) / time.Duration(b.N)
			if len(u.silent) != silent {
				b.Fatalf("%d flows wait for an answer, want %d", len(u.silent), silent)
			}
			b.ReportMetric(100*look.Seconds()/(look+max(lookPause, lookShare*look)).Seconds(), "%core")
		})
	}
}
