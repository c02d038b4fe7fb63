package host

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// TestArrivalsFlood has more clients come than the set of arrivals holds: nearly all new ones take the places of others,
// so that their replies still come back through this node.
func TestArrivalsFlood(t *testing.T) {
	t.Run("legacy", func(t *testing.T) { // nf_tables knows both interfaces
		r := newRouter(t, xtables.Legacy)
		o := options(t, xtables.Legacy)
		o.Interface, o.Mode = "lo", dataplane.Needs{Forward: true, LocalIn: true}
		// One that is there is kept: this one is full at once, and for long.
		if out, err := exec.Command("ipset", "create", "vipd-arrived4", "hash:net,iface", "hashsize", "64", "maxelem", "256", "timeout", "600", "forceadd").CombinedOutput(); err != nil {
			t.Fatalf("making a small set: %v: %s", err, out)
		}
		h := newHost(t, o)
		r.translate("10.96.0.11:80", "10.3.0.3:8080")
		server, err := r.far.ListenPacket("udp", "10.3.0.3:8080")
		must(t, err)
		defer func() { _ = server.Close() }()
		f := frontend("10.96.0.11:80")
		apply(t, h, f, udp(f))
		r.near.Exec("ip", "route", "add", "local", "10.50.0.0/16", "dev", "lo")
		r.Host().Exec("ip", "route", "add", "10.50.0.0/16", "via", "10.3.0.2")
		const clients = 1000
		missed := 0
		for i := range clients {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 50, byte(i / 250), byte(1 + i%250)}), 0)
			c, err := r.near.DialFrom(t.Context(), "udp", from, "10.96.0.11:80")
			must(t, err)
			_, err = c.Write([]byte("hello"))
			must(t, err)
			must(t, c.Close())
			must(t, server.SetReadDeadline(deadline()))
			buf := make([]byte, 100)
			for {
				n, sender, err := server.ReadFrom(buf)
				must(t, err)
				if string(buf[:n]) != "hello" {
					continue
				}
				if sender.(*net.UDPAddr).AddrPort().Addr().Unmap().String() != "10.3.0.1" {
					missed++
				}
				break
			}
		}
		if got := strings.Count(r.Host().Exec("ipset", "list", "vipd-arrived4"), "10.50."); got == 0 || got > 256 {
			t.Errorf("%d clients are remembered, want 256 at most", got)
		}
		if t.Logf("%d of %d clients found no place", missed, clients); missed > clients/7 {
			t.Errorf("%d of %d clients found no place", missed, clients)
		}
		checkIntact(t, h)
	})
}
