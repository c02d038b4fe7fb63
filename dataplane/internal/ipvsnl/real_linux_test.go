package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// failAt repeats random additions in ops. The kernel must refuse the repeated ops. failAt returns
// all ops, and the indexes of the repeated ops.
func failAt(r *rand.Rand, ops []Op) ([]Op, map[int]bool) {
	var out []Op
	repeated := map[int]bool{}
	for _, o := range ops {
		out = append(out, o)
		if r.IntN(20) == 0 {
			repeated[len(out)] = true
			out = append(out, o)
		}
	}
	return out, repeated
}

// TestIPVSPartsOfBatches makes a thousand changes, some of which must fail. Do must return an error
// for each of these, and all other changes must succeed.
func TestIPVSPartsOfBatches(t *testing.T) {
	k := kernel(t)
	ops, repeated := failAt(rand.New(rand.NewPCG(1, 1)), fleet(10, 100))
	errs := k.Do(t.Context(), ops)
	if len(errs) != len(ops) || len(repeated) < 20 {
		t.Fatalf("errors = %d for %d changes with %d repetitions, want 1 for each change", len(errs), len(ops), len(repeated))
	}
	for i, err := range errs {
		if repeated[i] != errors.Is(err, ErrExists) || !repeated[i] && err != nil {
			t.Errorf("%s: error = %v, want ErrExists = %v", ops[i], err, repeated[i])
		}
	}
	table, err := k.Table(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for k, e := range table {
		if len(e.Destinations) != 100 {
			t.Errorf("destinations of %s = %d, want 100", k, len(e.Destinations))
		}
	}
	// If all changes are refused, the answers need the most space.
	for i, err := range k.Do(t.Context(), ops) {
		if !errors.Is(err, ErrExists) {
			t.Fatalf("repeated %s: error = %v, want ErrExists", ops[i], err)
		}
	}
}

// TestIPVSLostRefusals makes the buffer too small for the kernel's refusals, so some of them are
// lost. A change whose refusal was lost must not count as successful. Later changes must work.
func TestIPVSLostRefusals(t *testing.T) {
	k := kernel(t)
	ops := fleet(1, batchSize-1)
	do(t, k, ops...)
	s := <-k.turn
	if err := s.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1); err != nil { // sets the buffer to the kernel's minimum size
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	k.turn <- s
	known, unknown := 0, 0
	for i, err := range k.Do(t.Context(), ops) {
		switch {
		case errors.Is(err, ErrExists):
			known++
		case errors.Is(err, ErrNoAnswer):
			unknown++
		default:
			t.Errorf("%s: error = %v, want ErrExists or an unknown result", ops[i], err)
		}
	}
	if known+unknown != len(ops) || unknown == 0 {
		t.Errorf("refusals = %d, lost refusals = %d, changes = %d; want some lost refusals, and a refusal for each other change", known, unknown, len(ops))
	}
	for i, err := range k.Do(t.Context(), ops) {
		if !errors.Is(err, ErrExists) {
			t.Fatalf("%s: error = %v, want ErrExists", ops[i], err)
		}
	}
}

// TestIPVSSeveralAtOnce changes and reads virtual servers in several goroutines, each with its own
// virtual server. Each goroutine must get the answers to its own requests.
func TestIPVSSeveralAtOnce(t *testing.T) {
	k := kernel(t)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			s := Service{Key: key(fmt.Sprintf("10.96.1.%d:80", g)), Scheduler: "wrr"}
			if g%2 == 1 {
				s.Key = key(fmt.Sprintf("[fd96::1:%d]:80/udp", g))
			}
			want := Destination{Forward: balancer.NATForward}
			for round := range 20 {
				do(t, k, Op{Verb: AddService, Service: s})
				var ops []Op
				for i := range 5 + round {
					want.Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("10.%d.0.%d", g, i)), 80)
					if s.Key.Addr.Is6() {
						want.Addr = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd0%d::%d", g, i+1)), 80)
					}
					want.Weight = g*100 + round
					ops = append(ops, Op{AddDestination, s, want}, Op{AddDestination, s, want})
				}
				for i, err := range k.Do(t.Context(), ops) {
					if (i%2 == 1) != errors.Is(err, ErrExists) {
						t.Errorf("%s: error = %v, want ErrExists = %v", ops[i], err, i%2 == 1)
					}
				}
				got, err := k.Destinations(t.Context(), s.Key)
				if err != nil || len(got) != 5+round || got[0].Destination != want {
					t.Errorf("%s: destinations = %d, virtual server = %+v, error = %v; want %d, %+v", s.Key, len(got), got, err, 5+round, want)
					return
				}
				do(t, k, Op{Verb: DeleteService, Service: s})
				if _, err := k.Destinations(t.Context(), s.Key); !errors.Is(err, ErrNoService) {
					t.Errorf("error = %v, want %v", err, ErrNoService)
				}
			}
		})
	}
	all.Wait()
}

// TestIPVSSocketIsReplaced replaces the socket with a socket to a fake kernel that does not answer.
// The next call must fail, and the call after that must reach IPVS.
func TestIPVSSocketIsReplaced(t *testing.T) {
	k := kernel(t)
	do(t, k, fleet(2, 2)...)
	silent := clientOfFakes(t, time.Hour, nil)
	mute, err := silent.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	silent.turn <- nil
	s := <-k.turn
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	k.turn <- s
	if all, err := k.Services(t.Context()); err == nil {
		t.Fatalf("Services on a closed socket = %v, want an error", all)
	}
	s = <-k.turn
	if s != nil {
		t.Fatal("the lost socket is used again")
	}
	k.turn <- mute
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := k.Services(ctx); !errors.Is(err, ErrNoAnswer) {
		t.Fatalf("error = %v, want %v", err, ErrNoAnswer)
	}
	if all, err := k.Services(t.Context()); err != nil || len(all) != 2 {
		t.Fatalf("virtual servers = %d, %v; want 2", len(all), err)
	}
}

// TestIPVSServices4 counts the virtual servers with IPv4 addresses. Other virtual servers must not
// be counted.
func TestIPVSServices4(t *testing.T) {
	k := kernel(t)
	do(t, k, fleet(3, 1)...)
	do(t, k, Op{Verb: AddService, Service: Service{Key: key("[fd96::1]:80"), Scheduler: "rr"}})
	if got, err := k.Services4(t.Context()); got != 3 || err != nil {
		t.Errorf("Services4 = %d, %v; want 3", got, err)
	}
}

// TestIPVSHasScheduler checks whether schedulers exist. Afterwards, no objects may remain. If the
// kernel lacks IPv6, the result must be true, because the kernel then refuses the request before it
// checks the scheduler.
func TestIPVSHasScheduler(t *testing.T) {
	k := kernel(t)
	before := readServers(t, k)
	for _, name := range []string{"wrr", "nosuch"} {
		has, err := k.HasScheduler(t.Context(), name)
		if err != nil || has != (name == "wrr") {
			t.Errorf("HasScheduler(%s) = %v, %v; want %v", name, has, err, name == "wrr")
		}
	}
	if has, err := k.foundScheduler(syscall.EAFNOSUPPORT); err != nil || !has {
		t.Errorf("without IPv6: HasScheduler = %v, %v; want true", has, err)
	}
	if diff := cmp.Diff(before, readServers(t, k), addresses); diff != "" {
		t.Error(diff)
	}
}

// TestIPVSMarks creates virtual servers with firewall marks. Lists must omit them, because they
// have no keys.
func TestIPVSMarks(t *testing.T) {
	k := kernel(t)
	lab.Need(t, "ipvsadm")
	host := lab.New(t).Host()
	host.Exec("ipvsadm", "-A", "-f", "7", "-s", "rr")
	t.Cleanup(func() { host.Exec("ipvsadm", "-D", "-f", "7") })
	host.Exec("ipvsadm", "-a", "-f", "7", "-r", "10.2.0.9:80", "-m")
	do(t, k, fleet(1, 1)...)
	if got := readServers(t, k); len(got.Services) != 1 || len(got.Table) != 1 || len(got.Table[got.Services[0].Key].Destinations) != 1 || got.Services4 != 2 {
		t.Errorf("virtual servers = %+v, want only the virtual server with a key, and 2 from Services4", got)
	}
}

// TestIPVSTraffic sends traffic to virtual servers. The traffic must be counted, and connections
// must be listed while they exist.
func TestIPVSTraffic(t *testing.T) {
	k := kernel(t)
	l := lab.New(t)
	client, server := l.Add("client"), l.Add("server")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	l.Link(l.Host(), server, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	server.Default("10.2.0.1", "fd02::1")
	client.Default("10.1.0.1", "fd01::1")
	l.Host().AddAddr("lo", "10.96.0.1/32")
	l.Host().AddAddr("lo", "fd96::1/128")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	l.Host().Sysctl("net.ipv6.conf.all.forwarding", "1")
	for _, v := range []struct {
		vip, endpoint string
		header        uint64
	}{{"10.96.0.1", "10.2.0.2", 28}, {"fd96::1", "fd02::2", 48}} {
		t.Run(v.vip, func(t *testing.T) {
			endpoint := netip.AddrPortFrom(netip.MustParseAddr(v.endpoint), 8080)
			for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
				server.Echo(string(proto), "server", endpoint)
				s := Service{Key: balancer.Key{Addr: netip.MustParseAddr(v.vip), Port: 80, Proto: proto}, Scheduler: "wrr"}
				if proto == balancer.TCP {
					s.Flags, s.Timeout = Persistent, 100*time.Second
				}
				do(t, k, Op{Verb: AddService, Service: s}, Op{AddDestination, s, Destination{Addr: endpoint, Forward: balancer.NATForward, Weight: 1}})
				if proto == balancer.TCP {
					connectionsComeAndGo(t, k, client, s, endpoint)
				} else {
					datagramsCount(t, k, client, s, endpoint, v.header)
				}
			}
		})
	}
}

// datagramsCount sends a known number of bytes in both directions. It checks that IPVS counts them.
func datagramsCount(t *testing.T, k *Client, client *lab.NS, s Service, endpoint netip.AddrPort, header uint64) {
	t.Helper()
	const n, size = 50, 1000
	c, err := client.Dial(t.Context(), "udp", s.Key.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := slices.Repeat([]byte("x"), size)
	for range n {
		if err := c.SetDeadline(time.Now().Add(wait.Bound(0))); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(buf); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Read(buf); err != nil || got != size {
			t.Fatalf("received bytes = %d, %v; want %d", got, err, size)
		}
	}
	want := Stats{Connections: 1, InPackets: n, OutPackets: n, InBytes: n * (size + header), OutBytes: n * (size + header)}
	counted(t, k, s.Key, endpoint, want, DestinationState{Inactive: 1})
	udp := connectionsOf(t, k, s.Key)
	if len(udp) != 1 || udp[0].State != "udp" || udp[0].Backend != endpoint || udp[0].Client.String() != c.LocalAddr().String() || udp[0].Template {
		t.Errorf("connections = %+v, want only the client's UDP connection", udp)
	}
}

// counted waits until a virtual server and its only destination have the expected counts. The wait
// is necessary because the kernel updates counts only every two seconds.
func counted(t *testing.T, k *Client, key balancer.Key, endpoint netip.AddrPort, want Stats, conns DestinationState) {
	t.Helper()
	var service ServiceState
	var destinations []DestinationState
	defer func() {
		if t.Failed() {
			t.Logf("got %+v %+v, want %+v", service.Stats, destinations, want)
		}
	}()
	wait.For(t, 5*time.Second, "the counts of "+key.String(), func() bool {
		var err, err2 error
		service, err = k.Service(t.Context(), key)
		destinations, err2 = k.Destinations(t.Context(), key)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		d := destinations[0]
		return len(destinations) == 1 && d.Addr == endpoint && service.Stats == want && d.Stats == want &&
			d.Active == conns.Active && d.Inactive == conns.Inactive
	})
	all, err := k.Services(t.Context())
	if err != nil || !slices.Contains(all, service) {
		t.Errorf("virtual servers = %+v, %v; want %+v among them", all, err, service)
	}
	table, err := k.Table(t.Context())
	want1 := []TableDestination{{endpoint, balancer.NATForward, 1, conns.Active, conns.Inactive}}
	if got := table[key].Destinations; err != nil || !reflect.DeepEqual(got, want1) {
		t.Errorf("table = %+v, %v; want %+v", got, err, want1)
	}
}

func connectionsOf(t *testing.T, k *Client, key balancer.Key) (all []Connection) {
	t.Helper()
	for c, err := range k.Connections(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if (balancer.Key{Addr: c.Frontend.Addr(), Port: balancer.PortRange(c.Frontend.Port()), Proto: c.Proto}) == key {
			all = append(all, c)
		}
	}
	return all
}

// connectionsComeAndGo opens three connections and closes one of them. The destination's counts
// must agree with the list of connections.
func connectionsComeAndGo(t *testing.T, k *Client, client *lab.NS, s Service, endpoint netip.AddrPort) {
	t.Helper()
	var states []string
	for i := range 3 {
		c, err := client.Dial(t.Context(), "tcp", s.Key.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := lab.Ask(c); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := DestinationState{Active: 2, Inactive: 1}
	wait.For(t, 5*time.Second, "one connection to end", func() bool {
		d, err := k.Destinations(t.Context(), s.Key)
		if err != nil {
			t.Fatal(err)
		}
		return len(d) == 1 && d[0].Active == want.Active && d[0].Inactive == want.Inactive && d[0].Connections == 3
	})
	for _, c := range connectionsOf(t, k, s.Key) {
		if c.Backend != endpoint || c.Client.Addr().Is4() != s.Key.Addr.Is4() || c.Expires <= 0 {
			t.Errorf("connection = %+v, want a connection to the endpoint that has not expired", c)
		}
		states = append(states, c.State+" "+strconv.FormatBool(c.Template))
	}
	slices.Sort(states)
	if len(states) != 4 || states[1] != "established false" || states[2] != "established false" || !slices.ContainsFunc(states, func(s string) bool { return strings.HasSuffix(s, "true") }) {
		t.Errorf("states of connections = %q, want two established connections, one closed connection, and one template", states)
	}
}
