package owner

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/test/etcdkit"
)

// TestRouterReplaced changes the default gateway of all hosts, and removes the first gateway from
// the LAN. These changes must not move any VIP. When the owner loses its LAN, another host must
// take over.
func TestRouterReplaced(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	router := f.lab.Add("router")
	f.lan.Join(router, "10.9.0.2/16", "10.9.0.1/16")
	for _, g := range f.hosts {
		g.ns.Exec("ip", "route", "replace", "default", "via", "10.9.0.1")
		g.configure(func(text string) string { return strings.Replace(text, "reach = [\"10.9.0.50\"]\n", "", 1) })
		signal(syscall.SIGTERM)(g)
		g.start()
		f.waitForOwner()
	}
	g, took, p := f.waitForOwner(), f.takeovers(), f.probe()
	for _, h := range f.hosts {
		h.ns.Exec("ip", "route", "replace", "default", "via", "10.9.0.2")
	}
	time.Sleep(500 * time.Millisecond) // a person would wait at least this long between the changes
	router.DelAddr("lan", "10.9.0.1/16")
	time.Sleep(4 * time.Second) // longer than the 2 s for which a gateway may be silent; no VIP may move in this time
	if now, late := f.takeovers(), f.late(); now != took && late < tooLate {
		t.Errorf("VIPs moved from %s after the gateway was replaced, but no owner was late by more than %s; want no move", g.ns.Name, late)
	}
	f.judge(p, "another gateway")
	f.meets(lanLost)
}
