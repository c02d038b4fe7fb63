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

// newHost makes a Host that is closed with the test; its ledger is that of the test's folder.
func newHost(t *testing.T, o Options) *Host {
	t.Helper()
	h, err := New(o)
	must(t, err)
	t.Cleanup(func() {
		_ = h.Close() // a test may have closed it already
		if _, err := Cleanup(context.WithoutCancel(t.Context()), o, false); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	return h
}

// options are the defaults, with a folder of the test and one backend.
func options(t *testing.T, backend xtables.Variant) Options {
	t.Helper()
	o := DefaultOptions()
	o.RunDir, o.Variant = t.TempDir(), backend
	return o
}

// withoutTables makes the trials of nf_tables fail until the test ends, as if the kernel could not do what the guard needs:
// their tables belong to another program.
func withoutTables(t *testing.T) {
	t.Helper()
	conn, err := nft.Open()
	must(t, err)
	var claim, free nft.Tx
	for _, of := range []nft.Family{nft.IPv4, nft.IPv6} {
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

// apply is the engine's round with a dataplane that succeeds.
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

// where maps every VIP in use to who holds it.
func where(h *Host) map[string]string {
	m := map[string]string{}
	for _, a := range h.Addresses() {
		m[a.Addr.String()] = a.Where
	}
	return m
}

// onDevice lists the addresses of a device, as the kernel has them, without link-local ones.
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
		t.Fatalf("addresses of %s: got %q, want %q", device, got, want)
	}
}

// everything is what the kernel has of addresses, links, routes, rules, sets and the sysctls in question.
func everything(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	run := func(name string, args ...string) {
		out, err := exec.Command(name, args...).Output()
		if err != nil {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		fmt.Fprintf(&b, "== %s %s\n", name, strings.Join(args, " "))
		for line := range strings.Lines(string(out)) {
			// The kernel lets go of rules that are gone, and so of their sets, a moment later.
			if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "Size in memory") || strings.HasPrefix(line, "References") {
				continue
			}
			if line[0] == ':' {
				line, _, _ = strings.Cut(line, "[") // counters
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

// checkLeft compares everything with what was there before.
func checkLeft(t *testing.T, before string) {
	t.Helper()
	after := everything(t)
	if after == before {
		return
	}
	was, is := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			t.Errorf("gone: %s", line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			t.Errorf("new: %s", line)
		}
	}
	t.Fatalf("this is not what was there before")
}

// warm makes what tools make by being asked, so that two looks at everything can be compared.
func warm(t *testing.T) {
	t.Helper()
	everything(t)
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

// outcome is what a connection attempt came to.
type outcome string

const (
	open    outcome = "open"
	refused outcome = "refused"
	silence outcome = "silence"
)

// attempt connects over TCP from a namespace. It waits for long only where silence is not what is expected: a machine
// with too much to do is no reason to fail.
func attempt(t *testing.T, from *lab.NS, to string, want outcome) outcome {
	t.Helper()
	patience := testwait.Bound(0)
	if want == silence {
		patience = max(300*time.Millisecond, testwait.Scaled(100*time.Millisecond))
	}
	var got outcome
	must(t, from.Do(func() error {
		// The name service and happy eyeballs would dial in goroutines elsewhere; an address is dialed here.
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
		t.Fatalf("connecting from %s to %s: got %s, want %s", from.Name, to, got, want)
	}
}

// pings asks once. An answer is waited for with patience: ping takes none that it has had no time for within -W; that nobody has the
// address it hears from the kernel.
func pings(t *testing.T, from *lab.NS, to string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Bound(0))
	defer cancel()
	return from.Command(ctx, "ping", "-c", "1", "-W", "60", to).Run() == nil
}

// listen accepts connections on every address of the host at a port, until the test ends.
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

// bothBackends runs the test with each backend of iptables.
func bothBackends(t *testing.T, test func(t *testing.T, backend xtables.Variant)) {
	lab.Need(t, "ip", "iptables-nft", "iptables-legacy", "ipset")
	for _, b := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(b), func(t *testing.T) { test(t, b) })
	}
}

// network is a host with a client on a link of its own: 10.1.0.1 and .2, fd01::1 and ::2. VIPs are routed to the host.
func network(t *testing.T) (*lab.Lab, *lab.NS) {
	t.Helper()
	l := lab.New(t)
	client := l.Add("client")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	client.Default("10.1.0.1", "fd01::1")
	// The kernel answers for a new IPv6 address a moment after it is added; whoever asks too early shall ask again soon.
	for on, device := range map[*lab.NS]string{client: "host", l.Host(): "client"} {
		on.Sysctl("net.ipv6.neigh."+device+".retrans_time_ms", "50")
		on.Sysctl("net.ipv6.neigh."+device+".mcast_solicit", "200") // for long: a busy one answers late
	}
	return l, client
}

func ledgerExists(o Options) bool {
	_, err := os.Stat(filepath.Join(o.RunDir, ledgerFile))
	return err == nil
}

// deadlineIn bounds what takes a moment.
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
		t.Fatalf("there are no connections to port %d of %s", port, vip)
	}
	return marks
}
