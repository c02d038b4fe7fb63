package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Lab is a network of namespaces around the host, for the duration of one test. Its methods and the
// methods of its namespaces fail the test on an error, and undo their changes when the test ends.
type Lab struct {
	t    testing.TB
	ctx  context.Context
	host *NS
}

// New starts a network that contains only the host, whose only interface is lo. It skips the test
// if Require does.
func New(t testing.TB) *Lab {
	t.Helper()
	Require(t)
	l := &Lab{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	l.ctx = ctx
	t.Cleanup(cancel)
	fd, err := openNS()
	if err != nil {
		t.Fatal(err)
	}
	l.host = l.adopt("host", fd)
	return l
}

// Host returns the namespace of the test process itself.
func (l *Lab) Host() *NS { return l.host }

// Add creates a namespace with lo up. The name, of 1 to 15 characters, appears in messages and in
// the names of links.
func (l *Lab) Add(name string) *NS {
	l.t.Helper()
	fd, err := newNS()
	if err != nil {
		l.t.Fatalf("making namespace %s: %v", name, err)
	}
	n := l.adopt(name, fd)
	if err := n.Do(configureNamespace); err != nil {
		l.t.Fatalf("setting up namespace %s: %v", name, err)
	}
	n.linkUp("lo")
	return n
}

func (l *Lab) adopt(name string, fd netns.NsHandle) *NS {
	l.t.Helper()
	l.t.Cleanup(func() { _ = fd.Close() })
	h, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	if err != nil {
		l.t.Fatalf("opening netlink in namespace %s: %v", name, err)
	}
	l.t.Cleanup(h.Close)
	return &NS{Name: name, lab: l, fd: fd, netlink: h}
}

// configureNamespace gives the calling thread's namespace settings that do not depend on the
// machine: addresses are usable at once, nothing is configured automatically, reverse paths are not
// filtered, and ICMP errors are not rate-limited.
func configureNamespace() error {
	settings := map[string]string{
		"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.default.rp_filter": "0",
		"net.ipv4.conf.all.arp_ignore": "0", "net.ipv4.conf.all.arp_announce": "0",
		"net.ipv4.conf.all.send_redirects": "0", "net.ipv4.conf.default.send_redirects": "0",
		"net.ipv4.ip_forward":            "0",
		"net.ipv6.conf.all.accept_dad":   "0",
		"net.ipv6.conf.all.accept_ra":    "0",
		"net.ipv6.conf.all.disable_ipv6": "0", "net.ipv6.conf.default.disable_ipv6": "0",
		"net.ipv6.conf.default.accept_dad": "0", "net.ipv6.conf.default.accept_ra": "0",
		"net.ipv6.conf.all.forwarding": "0",
		"net.ipv4.icmp_ratelimit":      "0", "net.ipv6.icmp.ratelimit": "0", // no limit per destination; the masks exempt refusals from the global limit
		"net.ipv4.icmp_ratemask": "0", "net.ipv6.icmp.ratemask": "128-255",
	}
	for name, value := range settings {
		if err := os.WriteFile(sysctlPath(name), []byte(value), 0); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

func sysctlPath(name string) string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
}
