package ipvsnl

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vipd/balancer"
	"vipd/test/wait"
)

var addresses = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})

func key(s string) balancer.Key {
	k, err := balancer.ParseKey(s)
	if err != nil {
		panic(err)
	}
	return k
}

// fleet returns ops that add this many virtual servers, each with this many destinations.
func fleet(services, destinations int) []Op {
	var ops []Op
	for i := range services {
		s := Service{Key: balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Proto: balancer.TCP}, Scheduler: "wrr"}
		ops = append(ops, Op{Verb: AddService, Service: s})
		for j := range destinations {
			n := i*destinations + j
			ops = append(ops, Op{Verb: AddDestination, Service: s, Destination: Destination{
				Addr:    netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 | byte(n>>16), byte(n >> 8), byte(n)}), 8080),
				Forward: balancer.NATForward, Weight: 1,
			}})
		}
	}
	return ops
}

// TestRecordedTable decodes a table that was recorded on Linux 6.1. Each virtual server must be
// decoded correctly.
func TestRecordedTable(t *testing.T) {
	f, err := os.Open("testdata/ip_vs")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, _, err := readTable(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := func(addr string, forward balancer.Forward, weight int, active, inactive uint32) TableDestination {
		return TableDestination{netip.MustParseAddrPort(addr), forward, weight, active, inactive}
	}
	want := map[balancer.Key]TableService{
		key("10.0.0.3:80"): {"sh", []TableDestination{
			d("10.1.0.3:80", "tunnel", 0, 0, 0), d("10.1.0.2:80", "dr", 1, 0, 0), d("10.1.0.1:80", "nat", 65535, 0, 0),
		}},
		key("[fd96::1]:82"): {"wrr", []TableDestination{
			d("10.2.0.1:82", "tunnel", 65535, 0, 0), d("[fd02::1]:82", "dr", 1, 0, 0),
		}},
		key("10.96.0.2:81"):     {"wrr", []TableDestination{d("10.9.9.9:81", "tunnel", 1, 1, 0)}},
		key("[fd96::1]:81"):     {"wlc", []TableDestination{d("[fd02::1]:8080", "nat", 1, 0, 1)}},
		key("[fd96::1]:80"):     {"sh", []TableDestination{d("[fd02::1]:8080", "nat", 1, 1, 0)}},
		key("10.96.0.1:80"):     {"wrr", []TableDestination{d("10.2.0.1:8080", "nat", 1, 1, 1)}},
		key("10.96.0.1:53/udp"): {"rr", []TableDestination{d("10.2.0.1:53", "nat", 1, 0, 1)}},
		key("10.0.0.2:81/udp"):  {"rr", nil},
		key("10.0.0.2:80/udp"):  {"wrr", nil},
		key("10.0.0.4:80/sctp"): {"mh", nil},
	}
	if diff := cmp.Diff(want, got, addresses); diff != "" {
		t.Fatal(diff)
	}
}

// TestRecordedConnections decodes a connection list that was recorded on Linux 6.1. Each connection
// must be decoded correctly.
func TestRecordedConnections(t *testing.T) {
	f, err := os.Open("testdata/ip_vs_conn")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []Connection
	if err := readConnections(f, func(c Connection) bool {
		got = append(got, c)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	c := func(proto balancer.Protocol, client, frontend, backend, state string, expires int, template bool) Connection {
		return Connection{
			proto, netip.MustParseAddrPort(client), netip.MustParseAddrPort(frontend), netip.MustParseAddrPort(backend),
			state, time.Duration(expires) * time.Second, template,
		}
	}
	want := []Connection{
		c("udp", "10.96.0.1:50634", "10.96.0.1:53", "10.2.0.1:53", "udp", 291, false),
		c("tcp", "10.96.0.1:0", "10.96.0.1:80", "10.2.0.1:8080", "assured", 291, true),
		c("tcp", "[fd96::1]:44136", "[fd96::1]:80", "[fd02::1]:8080", "established", 888, false),
		c("tcp", "10.96.0.2:42542", "10.96.0.2:81", "10.9.9.9:81", "syn_recv", 51, false),
		c("tcp", "[fd96::1]:36796", "[fd96::1]:81", "[fd02::1]:8080", "close_wait", 54, false),
		c("tcp", "10.96.0.1:57944", "10.96.0.1:80", "10.2.0.1:8080", "close_wait", 51, false),
		c("tcp", "10.96.0.1:57930", "10.96.0.1:80", "10.2.0.1:8080", "established", 888, false),
		c("tcp", "[fd96::1]:0", "[fd96::1]:81", "[fd02::1]:8080", "assured", 10791, true),
	}
	if diff := cmp.Diff(want, got, addresses); diff != "" {
		t.Fatal(diff)
	}
}

// show writes a table in the kernel's format. It inserts virtual servers with firewall marks
// between the table's virtual servers.
func show(table map[balancer.Key]TableService) []byte {
	const mark = "FWM  00000007 wrr persistent 75000 FFFFFFFF\n  -> 0A010001:0050      Masq    65535  0          0         \n"
	var b bytes.Buffer
	b.WriteString("IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n" +
		"  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n")
	for k, e := range table {
		fmt.Fprintf(&b, "%s%s  %s %s ", mark, strings.ToUpper(string(k.Proto)), hexadecimal(k.AddrPort(), true), e.Scheduler)
		if k.Addr.Is4() {
			b.WriteString([]string{"", "ops "}[k.Port%2] + " ")
		}
		if k.Port%3 == 0 {
			b.WriteString("persistent 75000 FFFFFFFF")
		}
		b.WriteString("\n")
		for _, d := range e.Destinations {
			name := map[balancer.Forward]string{"nat": "Masq", "local": "Local", "tunnel": "Tunnel", "dr": "Route"}[d.Forward]
			fmt.Fprintf(&b, "  -> %s      %-7s %-6d %-10d %-10d\n", hexadecimal(d.Addr, true), name, d.Weight, d.Active, d.Inactive)
		}
	}
	return b.Bytes()
}

// hexadecimal formats an address and a port as the kernel does in its two tables.
func hexadecimal(a netip.AddrPort, colon bool) string {
	between := " "
	if colon {
		between = ":"
	}
	if a.Addr().Is4() {
		return fmt.Sprintf("%X%s%04X", a.Addr().AsSlice(), between, a.Port())
	}
	groups := a.Addr().StringExpanded()
	if colon {
		groups = "[" + groups + "]"
	}
	return fmt.Sprintf("%s%s%04X", groups, between, a.Port())
}

func randomAddrPort(r *rand.Rand, six bool) netip.AddrPort {
	var b [16]byte
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	a := netip.AddrFrom16(b)
	if !six {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrPortFrom(a, uint16(r.Uint32()))
}

func oneOf[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func randomTable(r *rand.Rand) map[balancer.Key]TableService {
	table := map[balancer.Key]TableService{}
	for range r.IntN(50) {
		six := r.IntN(2) == 0
		at := randomAddrPort(r, six)
		e := TableService{Scheduler: oneOf(r, []string{"rr", "wrr", "wlc", "sh", "mh", "nq"})}
		for range r.IntN(4) * r.IntN(60) {
			e.Destinations = append(e.Destinations, TableDestination{
				randomAddrPort(r, six), oneOf(r, methods[:4]), r.IntN(1 << r.IntN(32)), r.Uint32(), r.Uint32(),
			})
		}
		table[balancer.Key{Addr: at.Addr(), Port: balancer.PortRange(at.Port()), Proto: oneOf(r, []balancer.Protocol{"tcp", "udp", "sctp"})}] = e
	}
	return table
}

// TestTables writes random tables and decodes them. Each decoded table must equal the original.
func TestTables(t *testing.T) {
	for seed := range uint64(wait.Soak(15, 50)) {
		want := randomTable(rand.New(rand.NewPCG(seed, 1)))
		got, others, err := readTable(bytes.NewReader(show(want)), nil)
		if err != nil || others != len(want) {
			t.Fatalf("seed %d: virtual servers without a key = %d, %v; want as many as with a key", seed, others, err)
		}
		if diff := cmp.Diff(want, got, addresses); diff != "" {
			t.Fatalf("seed %d: difference after decoding (-want +got):\n%s", seed, diff)
		}
	}
}

// TestTableOfMarks decodes virtual servers with firewall marks. The virtual server with the known
// mark must have its key and destinations. The other virtual server must only be counted.
func TestTableOfMarks(t *testing.T) {
	k := balancer.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: balancer.AllPorts, Proto: balancer.TCP}
	var known marks
	known.note(k)
	text := fmt.Sprintf("1\n2\n3\nFWM  %08X wrr persistent 10800 FFFFFFFF\n  -> 0A020001:0000      Masq    3      1          2\n"+
		"FWM  00000001 rr\n  -> 0A020002:0000      Masq    1      0          0\n", Mark(k))
	want := map[balancer.Key]TableService{k: {"wrr", []TableDestination{{netip.MustParseAddrPort("10.2.0.1:1"), balancer.NATForward, 3, 1, 2}}}}
	got, others, err := readTable(strings.NewReader(text), &known)
	if diff := cmp.Diff(want, got, addresses); diff != "" || others != 1 || err != nil {
		t.Errorf("virtual servers without a key = %d, %v; want 1; difference (-want +got):\n%s", others, err, diff)
	}
}

// TestConnections writes random connections and decodes them. Each decoded connection must equal
// the original. Decoding must stop when visit returns false.
func TestConnections(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	var want []Connection
	var b bytes.Buffer
	b.WriteString("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n")
	for range 500 {
		six := r.IntN(2) == 0
		c := Connection{
			Proto: oneOf(r, []balancer.Protocol{"tcp", "udp", "sctp"}), Client: randomAddrPort(r, six), Frontend: randomAddrPort(r, six),
			Backend: randomAddrPort(r, six && r.IntN(3) > 0), State: oneOf(r, []string{"established", "none", "cookie_wait"}),
			Expires: time.Duration(r.IntN(1<<r.IntN(22))) * time.Second,
		}
		if c.Template = r.IntN(3) == 0; c.Template {
			c.Client = netip.AddrPortFrom(c.Client.Addr(), 0)
		}
		want = append(want, c)
		fmt.Fprintf(&b, "%-3s %s %s %s %-11s %7d sip abc\n", strings.ToUpper(string(c.Proto)), hexadecimal(c.Client, false),
			hexadecimal(c.Frontend, false), hexadecimal(c.Backend, false), strings.ToUpper(c.State), c.Expires/time.Second)
		if r.IntN(5) == 0 {
			b.WriteString("IP  0A000001 0000 0A000002 0000 0A000003 0000 NONE            299\n") // a connection through a firewall mark
		}
	}
	for _, n := range []int{len(want), 7} {
		var got []Connection
		if err := readConnections(bytes.NewReader(b.Bytes()), func(c Connection) bool {
			got = append(got, c)
			return len(got) < n
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[:n], got, addresses); diff != "" {
			t.Fatal(diff)
		}
	}
}

// FuzzTable decodes arbitrary tables. If a decoded table is written and decoded again, it must not
// change.
func FuzzTable(f *testing.F) {
	recorded, err := os.ReadFile("testdata/ip_vs")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(recorded)
	f.Fuzz(func(t *testing.T, text []byte) {
		first, _, err := readTable(bytes.NewReader(text), nil)
		if err != nil {
			return
		}
		again, _, err := readTable(bytes.NewReader(show(first)), nil)
		if err != nil || !reflect.DeepEqual(first, again) {
			t.Fatalf("decoding the written table: error = %v, want nil and no difference:\n%s", err, cmp.Diff(first, again, addresses))
		}
	})
}

// FuzzConnections decodes arbitrary connections. Decoding must not panic.
func FuzzConnections(f *testing.F) {
	recorded, err := os.ReadFile("testdata/ip_vs_conn")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(recorded)
	f.Fuzz(func(t *testing.T, text []byte) {
		n := 0
		err := readConnections(bytes.NewReader(text), func(c Connection) bool {
			n++
			if !c.Client.IsValid() || !c.Frontend.IsValid() || !c.Backend.IsValid() || c.Proto == "" || c.Template != (c.Client.Port() == 0) {
				t.Errorf("connection = %+v, want valid addresses and a protocol", c)
			}
			return true
		})
		if lines := bytes.Count(text, []byte("\n")); err == nil && n > lines+1 {
			t.Errorf("connections = %d, want at most 1 for each of %d lines", n, lines+1)
		}
	})
}

// TestAllocations decodes a large table. This must need only a few allocations.
func TestAllocations(t *testing.T) {
	table := map[balancer.Key]TableService{}
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		table[balancer.Key{Addr: a, Port: 80, Proto: balancer.TCP}] = TableService{"wrr", slices.Repeat([]TableDestination{{netip.AddrPortFrom(a, 80), "nat", 1, 0, 0}}, 10)}
	}
	text := show(table)
	got := testing.AllocsPerRun(5, func() {
		if _, _, err := readTable(bytes.NewReader(text), nil); err != nil {
			t.Fatal(err)
		}
	})
	if got > 200 {
		t.Errorf("allocations for 1,000 virtual servers with 10 destinations = %.0f, want at most 200", got)
	}
}
