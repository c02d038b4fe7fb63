package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestConnectionListIsStreamed lists tens of thousands of connections. The daemon must write the
// list while it reads the kernel, without storing it, and must answer other requests at the same
// time.
func TestConnectionListIsStreamed(t *testing.T) {
	const maxKept = 4 << 20 // storing all connections would need far more: 200 bytes each, and another 200 as JSON
	crowd := wait.Soak(30_000, 100_000)
	lab.New(t)
	const timeout = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout" // the setting of this namespace
	before, err := os.ReadFile(timeout)
	if err == nil {
		err = errors.Join(os.WriteFile(timeout, []byte("3600"), 0o644), netlink.ConntrackTableFlush(netlink.ConntrackTable)) // removes flows of earlier tests
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // later tests run in the same namespace
		if err := errors.Join(os.WriteFile(timeout, before, 0o644), netlink.ConntrackTableFlush(netlink.ConntrackTable)); err != nil {
			t.Error(err)
		}
	})
	mode, _ := modes.Find(config.NFTablesMode)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	n.configure(`mode = "userspace"`, `mode = "nftables"`, `[services.dns]
vips = ["127.58.9.9"]
ports = [{ port = 53, protocol = "udp" }]
endpoints = [{ address = "127.58.9.1", port = 5353 }]
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	silent, err := net.ListenPacket("udp", "127.58.9.1:5353")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	sendFromClients(t, 0, crowd, netip.MustParseAddrPort("127.58.9.9:53"))
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	ctx := t.Context() // a client without an answer fails by its own timeout
	var seen []bool
	empty, listed, grown := live(), 0, uint64(0)
	began := time.Now()
	each := func(c api.Connection) error {
		client := c.Client.Addr().As4()
		i := binary.BigEndian.Uint32(client[:]) - (127<<24 | 1<<16)
		if i >= uint32(crowd) || seen[i] {
			return fmt.Errorf("client %s is listed twice or did not connect, want each client once", c.Client)
		}
		seen[i] = true
		if listed++; listed%(crowd/10) == 0 {
			if _, err := n.client.Status(ctx); err != nil {
				return fmt.Errorf("error of status after %d connections: %w", listed, err)
			}
			kept := uint64(1 << 40)
			for tries := 0; tries < 3 && kept > maxKept; tries++ { // memory of other goroutines is freed by a later collection
				now := live()
				kept = min(kept, now-min(now, empty))
			}
			grown = max(grown, kept)
		}
		return nil
	}
	lab.Eventually(t, 10*time.Minute, "a list of all connections", func() error { // if this process had no CPU time for 10 s, vipd looks silent
		seen, listed = make([]bool, crowd), 0
		err := n.client.EachConnection(ctx, dataplane.ConnectionQuery{Service: "dns"}, each)
		if err == nil && listed != crowd {
			err = fmt.Errorf("listed connections = %d, want %d", listed, crowd)
		}
		return err
	})
	if t.Logf("%d listed in %s, %d KiB kept at most", listed, time.Since(began).Round(time.Millisecond), grown>>10); grown > maxKept {
		t.Errorf("memory kept by listing connections = %d bytes, want at most %d", grown, maxKept)
	}
	wait.For(t, 0, "a list in which nothing is named", func() bool { // a machine that is short of CPU time looks like a silent kernel
		none, err := n.client.Connections(ctx, dataplane.ConnectionQuery{Client: netip.MustParseAddrPort("192.0.2.1:0")})
		return err == nil && len(none) == 0
	})
}

// sendFromClients sends one datagram from each of several consecutive loopback addresses. The
// number first selects the address of the first sender.
func sendFromClients(t *testing.T, first, clients int, to netip.AddrPort) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for i := first; i < first+clients; i++ {
		from := unix.Inet4Pktinfo{Spec_dst: [4]byte(binary.BigEndian.AppendUint32(nil, 127<<24|1<<16+uint32(i)))}
		if _, err := unix.SendmsgN(fd, []byte("?"), unix.PktInfo4(&from), &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, 0); err != nil {
			t.Fatal(err)
		}
	}
}
