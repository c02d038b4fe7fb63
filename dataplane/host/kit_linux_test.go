package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	testwait "vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newHost(t *testing.T, o Options) *Host {
	t.Helper()
	h, err := New(o)
	must(t, err)
	t.Cleanup(func() {
		_ = h.Close() // the test may already have closed h
		if _, err := Cleanup(context.WithoutCancel(t.Context()), o, false); err != nil {
			t.Errorf("Cleanup: %v", err)
		}
	})
	return h
}

// options returns the default options, changed to use the test's folder and an iptables variant.
func options(t *testing.T, backend xtables.Variant) Options {
	t.Helper()
	o := DefaultOptions()
	o.RunDir, o.Variant = t.TempDir(), backend
	return o
}

// withoutTables makes nf_tables trials fail until the test ends. Another program then owns the
// trials' tables.
func withoutTables(t *testing.T) {
	t.Helper()
	conn, err := nft.Open()
	must(t, err)
	var claim, free nft.Tx
	for _, of := range []nft.TableFamily{nft.IPv4, nft.IPv6} {
		claim.ClaimTable(nft.Table{Family: of, Name: "vipd-guard-trial"})
		free.DeleteTable(nft.Table{Family: of, Name: "vipd-guard-trial"})
	}
	must(t, conn.Commit(&claim))
	t.Cleanup(func() {
		if err := errors.Join(conn.Commit(&free), conn.Close()); err != nil {
			t.Error(err)
		}
	})
}

// apply performs a round like the engine's, in which the dataplane applies these frontends.
func apply(t *testing.T, h *Host, frontends ...*balancer.Frontend) {
	t.Helper()
	d := desired(frontends...)
	must(t, h.Prepare(t.Context(), d))
	must(t, h.Finish(t.Context(), d.Frontends))
}

func finishNothing(t *testing.T, h *Host) {
	t.Helper()
	must(t, h.Prepare(t.Context(), balancer.Desired{}))
	must(t, h.Finish(t.Context(), snap.Map[balancer.Key, *balancer.Frontend]{}))
}

// holders returns the holder of each VIP that is in use.
func holders(h *Host) map[string]string {
	m := map[string]string{}
	for _, a := range h.Addresses() {
		m[a.Addr.String()] = a.Where
	}
	return m
}

// onDevice returns a device's addresses in the kernel, except link-local addresses.
func onDevice(t *testing.T, device string) []string {
	t.Helper()
	out, err := exec.Command("ip", "-j", "addr", "show", "dev", device).Output()
	if err != nil {
		return nil
	}
	var links []struct {
		AddrInfo []struct {
			Local     string
			PrefixLen int
		} `json:"addr_info"`
	}
	must(t, json.Unmarshal(out, &links))
	var addrs []string
	for _, l := range links {
		for _, a := range l.AddrInfo {
			if !strings.HasPrefix(a.Local, "fe80:") {
				addrs = append(addrs, fmt.Sprintf("%s/%d", a.Local, a.PrefixLen))
			}
		}
	}
	slices.Sort(addrs)
	return addrs
}

func checkDevice(t *testing.T, device string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := onDevice(t, device); !slices.Equal(got, want) {
		t.Fatalf("addresses of %s = %q, want %q", device, got, want)
	}
}

// dumpHost returns the kernel's addresses, links, routes, rules and sets, and the sysctls that vipd
// may change.
func dumpHost(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	run := func(name string, args ...string) {
		out, err := exec.Command(name, args...).Output()
		if err != nil {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		fmt.Fprintf(&b, "== %s %s\n", name, strings.Join(args, " "))
		for line := range strings.Lines(string(out)) {
			// The kernel releases removed rules late, and these rules still count as references to
			// sets.
			if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "Size in memory") || strings.HasPrefix(line, "References") {
				continue
			}
			if line[0] == ':' {
				line, _, _ = strings.Cut(line, "[") // without the counters
			}
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	run("ip", "-o", "addr")
	run("ip", "-o", "link")
	run("ip", "-4", "route", "show", "table", "all")
	run("ip", "-6", "route", "show", "table", "all")
	for _, tool := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		for _, table := range []string{"filter", "mangle", "nat", "raw"} {
			run(tool, "-t", table)
		}
	}
	run("ipset", "list", "-sorted")
	for _, name := range []string{"conf/all/arp_ignore", "conf/all/arp_announce", "ip_forward"} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
		must(t, err)
		fmt.Fprintf(&b, "%s = %s", name, text)
	}
	return b.String()
}

func checkUnchanged(t *testing.T, before string) {
	t.Helper()
	after := dumpHost(t)
	if after == before {
		return
	}
	was, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range was {
		if !slices.Contains(now, line) {
			t.Errorf("line missing from the host's state: %s", line)
		}
	}
	for _, line := range now {
		if !slices.Contains(was, line) {
			t.Errorf("unexpected line in the host's state: %s", line)
		}
	}
	t.Fatalf("the host's state has changed")
}

// primeTools runs the listing tools once, because they create objects at their first use. Without
// this, two dumps could differ.
func primeTools(t *testing.T) {
	t.Helper()
	dumpHost(t)
	for _, tool := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, table := range []string{"filter", "mangle", "nat", "raw"} {
			for _, do := range []string{"-N", "-X"} {
				if out, err := exec.Command(tool, "-w", "-t", table, do, "WARM").CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", tool, err, out)
				}
			}
		}
	}
}

// outcome is the result of a connection attempt.
type outcome string

const (
	open    outcome = "open"
	refused outcome = "refused"
	silence outcome = "silence"
)

// attempt opens a TCP connection from a namespace. A busy machine answers late, so the timeout is
// long unless want is no answer.
func attempt(t *testing.T, from *lab.NS, to string, want outcome) outcome {
	t.Helper()
	patience := testwait.Bound(0)
	if want == silence {
		patience = max(300*time.Millisecond, testwait.Scaled(100*time.Millisecond))
	}
	var got outcome
	must(t, from.Do(func() error {
		// to is an IP address, so net.Dialer dials in the calling goroutine. With a host name, it
		// would dial in other goroutines, which may run in another namespace.
		c, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "tcp", to)
		switch {
		case err == nil:
			got = open
			return c.Close()
		case strings.Contains(err.Error(), "refused"):
			got = refused
		case strings.Contains(err.Error(), "timeout"):
			got = silence
		default:
			return err
		}
		return nil
	}))
	return got
}

func checkAttempt(t *testing.T, from *lab.NS, to string, want outcome) {
	t.Helper()
	if got := attempt(t, from, to, want); got != want {
		t.Fatalf("connection from %s to %s = %s, want %s", from.Name, to, got, want)
	}
}

// pings reports whether an address answers a ping. It uses a long timeout, because ping -W ignores
// late answers. If no host has the address, the kernel reports this before the timeout.
func pings(t *testing.T, from *lab.NS, to string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Bound(0))
	defer cancel()
	return from.Command(ctx, "ping", "-c", "1", "-W", "60", to).Run() == nil
}

// listen accepts connections to a port at every address of the host, until the test ends.
func listen(t *testing.T, port int) {
	t.Helper()
	ln, err := net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	must(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
}

// bothBackends runs the test with each iptables backend.
func bothBackends(t *testing.T, test func(t *testing.T, backend xtables.Variant)) {
	lab.Need(t, "ip", "iptables-nft", "iptables-legacy", "ipset")
	for _, b := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(b), func(t *testing.T) { test(t, b) })
	}
}

// network creates a host (10.1.0.1, fd01::1) and a client (10.1.0.2, fd01::2) on a link. The client
// routes packets for VIPs to the host. It returns the lab and the client.
func network(t *testing.T) (*lab.Lab, *lab.NS) {
	t.Helper()
	l := lab.New(t)
	client := l.Add("client")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	client.Default("10.1.0.1", "fd01::1")
	// The kernel may answer late for a new IPv6 address, so make neighbors repeat their requests
	// soon.
	for on, device := range map[*lab.NS]string{client: "host", l.Host(): "client"} {
		on.Sysctl("net.ipv6.neigh."+device+".retrans_time_ms", "50")
		on.Sysctl("net.ipv6.neigh."+device+".mcast_solicit", "200") // repeat for a long time, because a busy host answers late
	}
	return l, client
}

func ledgerExists(o Options) bool {
	_, err := os.Stat(filepath.Join(o.RunDir, ledgerFile))
	return err == nil
}

// deadlineIn is the usual time limit for waiting in these tests.
const deadlineIn = 3 * time.Second

func deadline() time.Time { return time.Now().Add(testwait.Bound(deadlineIn)) }

// connectionMarks returns the marks of the connections to a port of a VIP.
func connectionMarks(t *testing.T, vip string, port uint16) []uint32 {
	t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	must(t, err)
	var marks []uint32
	for _, f := range flows {
		if f.Forward.DstIP.String() == vip && f.Forward.DstPort == port {
			marks = append(marks, f.Mark)
		}
	}
	if len(marks) == 0 {
		t.Fatalf("connections to port %d of %s: no marks, want at least one", port, vip)
	}
	return marks
}
