package ipvsnl_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/dataplane/internal/ipvsnl/ipvsnltest"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomOp returns an op with a valid or invalid value in each field. Ops affect one another,
// because randomOp uses few virtual servers and destinations.
func randomOp(r *rand.Rand) ipvsnl.Op {
	s := ipvsnl.Service{
		Key: balancer.Key{
			Addr: netip.MustParseAddr(pick(r, "10.97.0.1", "10.97.0.2", "fd97::1", "fd97::2")),
			Port: pick[balancer.PortRange](r, 80, 81, balancer.NewPortRange(8080, 8089)), Proto: pick(r, balancer.TCP, balancer.TCP, balancer.UDP, balancer.SCTP),
		},
		Scheduler: pick(r, append(ipvsnltest.KernelSchedulers, "wrr", "wrr", "wrr", "nosuch", "alongerthanitcan", "")...),
		Flags:     ipvsnl.Flags(r.IntN(64)),
		Timeout:   pick(r, 0, time.Second, 3*time.Hour, ipvsnl.MaxTimeout, ipvsnl.MaxTimeout+time.Second, -time.Second, time.Millisecond),
		Prefix:    pick(r, 0, 0, 1, 24, 31, 64, 128, -1),
	}
	d := ipvsnl.Destination{
		Addr: netip.AddrPortFrom(netip.MustParseAddr(pick(r,
			"10.2.0.1", "10.2.0.2", "10.2.0.3", "fd02::1", "fd02::2", "fd02::3",
			"0.0.0.0", "0.0.0.1", "169.254.0.1", "255.255.255.255", "224.0.0.1", "127.0.0.1", "::", "::1", "ff02::1", "fe80::1", "::ffff:10.2.0.1")),
			pick[uint16](r, 8080, 8081)),
		Forward: pick(r, balancer.NATForward, balancer.NATForward, balancer.DRForward, balancer.TunnelForward, ipvsnl.LocalForward, ipvsnl.BypassForward, ""),
		Weight:  pick(r, 0, 1, 1, 100, 65535, 65536, math.MaxInt32, -1),
		Upper:   pick[uint32](r, 0, 0, 10, math.MaxInt32, math.MaxInt32+1), Lower: pick[uint32](r, 0, 0, 0, 5, 11),
	}
	verb := pick(r, ipvsnl.AddService, ipvsnl.AddService, ipvsnl.EditService, ipvsnl.DeleteService, ipvsnl.AddDestination, ipvsnl.AddDestination, ipvsnl.AddDestination, ipvsnl.AddDestination, ipvsnl.EditDestination, ipvsnl.DeleteDestination, 4)
	return ipvsnl.Op{verb, s, d}
}

// TestIPVSHistories makes the same random changes in the kernel and in a Fake. Both must refuse the
// same changes for the same reason, and all ways of reading must show the same state. No other test
// uses these VIPs, because a destination that is added again might still have old connections.
func TestIPVSHistories(t *testing.T) {
	k := ipvsnl.NewKernel(t)
	schedulers := []string{}
	for _, name := range append(ipvsnltest.KernelSchedulers, "nosuch") {
		has, err := k.HasScheduler(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if has {
			schedulers = append(schedulers, name)
		}
	}
	if want := []string{"rr", "wrr", "lc", "wlc", "dh", "sh", "mh", "sed", "nq"}; slices.ContainsFunc(want, func(s string) bool { return !slices.Contains(schedulers, s) }) || slices.Contains(schedulers, "nosuch") {
		t.Fatalf("kernel's schedulers = %q, want %q among them", schedulers, want)
	}
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			if err := ipvsnl.Empty(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(seed, 0))
			f := ipvsnltest.NewFake()
			f.Schedulers = schedulers
			for range 20 {
				ops := make([]ipvsnl.Op, 1+r.IntN(60))
				for i := range ops {
					ops[i] = randomOp(r)
				}
				real, fake := k.Do(t.Context(), ops), f.Do(t.Context(), ops)
				if (real == nil) != (fake == nil) {
					t.Fatalf("kernel's errors = %v, fake's = %v; want equal errors", real, fake)
				}
				for i := range real {
					if fmt.Sprint(real[i]) != fmt.Sprint(fake[i]) {
						t.Fatalf("%+v %+v\nkernel's error = %v\nfake's error = %v, want the same", ops[i].Service, ops[i].Destination, real[i], fake[i])
					}
				}
				if diff := cmp.Diff(ipvsnl.Look(t, f), ipvsnl.Look(t, k), ipvsnl.Addresses, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("difference between the fake's state (-) and the kernel's state (+), want none:\n%s", diff)
				}
			}
		})
	}
}

// TestIPVSTimeouts sets some timeouts. The other timeouts must not change.
func TestIPVSTimeouts(t *testing.T) {
	k := ipvsnl.NewKernel(t)
	old, err := k.Timeouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.SetTimeouts(context.Background(), old); err != nil {
			t.Error(err)
		}
	})
	f := ipvsnltest.NewFake()
	for _, set := range []ipvsnl.Timeouts{
		{TCP: time.Hour, TCPFin: 30 * time.Second, UDP: 10 * time.Second}, {UDP: 20 * time.Second}, {}, {TCP: ipvsnl.MaxIdle + time.Second},
		{TCPFin: time.Millisecond}, {UDP: -time.Second}, {TCP: ipvsnl.MaxIdle},
	} {
		real, fake := k.SetTimeouts(t.Context(), set), f.SetTimeouts(t.Context(), set)
		if fmt.Sprint(real) != fmt.Sprint(fake) {
			t.Errorf("setting %+v: kernel's error = %v, fake's = %v; want the same", set, real, fake)
		}
		got, err := k.Timeouts(t.Context())
		want, fakeErr := f.Timeouts(t.Context())
		if got != want || err != nil || fakeErr != nil {
			t.Errorf("after setting %+v: kernel's timeouts = %+v, %v; fake's = %+v, %v; want the same", set, got, err, want, fakeErr)
		}
	}
}
