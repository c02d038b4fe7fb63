package dataplanetest

import (
	"errors"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/test/lab"
)

// FlushTables is a Damage: it empties every chain that iptables knows, as a firewall does that starts anew.
func FlushTables(t testing.TB) {
	t.Helper()
	lab.Need(t, "iptables", "ip6tables")
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"nat", "mangle", "filter"} {
			if out, err := exec.Command(tool, "-w", "-t", table, "-F").CombinedOutput(); err != nil {
				t.Fatalf("%s -t %s -F: %v\n%s", tool, table, err, out)
			}
		}
	}
}

// RemoveAddresses is a Damage: it takes every VIP from whatever device holds it.
func RemoveAddresses(t testing.TB) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	removed := 0
	for _, link := range links {
		addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addresses {
			if !isVIP(a.IPNet.IP) {
				continue
			}
			if err := netlink.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				t.Fatalf("removing %s from %s: %v", a.IPNet, link.Attrs().Name, err)
			}
			removed++
		}
	}
	if removed == 0 {
		t.Fatal("no device holds a VIP")
	}
}

func isVIP(ip []byte) bool {
	a, ok := netip.AddrFromSlice(ip)
	for _, vips := range vipRanges {
		if ok && netip.MustParsePrefix(vips).Contains(a.Unmap()) {
			return true
		}
	}
	return false
}
