package host

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// TestGuardedPorts connects to ports of VIPs that vipd holds, and ports of the host's own
// addresses. On VIPs, only ports of applied frontends may answer. The guard must not restrict the
// host's own addresses.
func TestGuardedPorts(t *testing.T) {
	l, client := network(t)
	lab.Need(t, "ping")
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	listen(t, 22)
	apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"), frontend("10.1.0.1:80"))
	for _, from := range []*lab.NS{client, l.Host()} {
		for _, vip := range []string{"10.96.0.10", "fd00:96::10"} {
			checkAttempt(t, from, net.JoinHostPort(vip, "80"), open)
			checkAttempt(t, from, net.JoinHostPort(vip, "22"), refused)
			checkAttempt(t, from, net.JoinHostPort(vip, "81"), refused)
			if !pings(t, from, vip) {
				t.Errorf("%s does not answer a ping from %s", vip, from.Name)
			}
		}
		checkAttempt(t, from, "10.1.0.1:22", open)
		checkUDPRefused(t, from, "10.96.0.10:22")
		checkUDPRefused(t, from, "[fd00:96::10]:22")
	}

	// A port must open when its frontend is applied, and close when the frontend is removed.
	more := desired(frontend("10.96.0.10:80"), frontend("10.96.0.10:22"))
	must(t, h.Prepare(t.Context(), more))
	checkAttempt(t, client, "10.96.0.10:22", refused)
	must(t, h.Finish(t.Context(), more.Frontends))
	checkAttempt(t, client, "10.96.0.10:22", open)
	apply(t, h, frontend("10.96.0.10:80"))
	checkAttempt(t, client, "10.96.0.10:22", refused)

	// The port of the other frontend must still be open.
	c, err := client.Dial(t.Context(), "tcp", "10.96.0.10:80")
	must(t, err)
	must(t, c.Close())
	checkIntact(t, h)
}

// checkUDPRefused checks that a datagram is refused with an ICMP error.
func checkUDPRefused(t *testing.T, from *lab.NS, to string) {
	t.Helper()
	c, err := from.Dial(t.Context(), "udp", to)
	must(t, err)
	defer func() { _ = c.Close() }()
	_, err = c.Write([]byte("hello"))
	must(t, err)
	must(t, c.SetReadDeadline(deadline()))
	if _, err = c.Read(make([]byte, 10)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("datagram from %s to %s: error = %v, want refused", from.Name, to, err)
	}
}

// TestRestrictedBeforeApplied adds source ranges to a frontend. Prepare must exclude all other
// clients, even if the changed frontend can't be applied.
func TestRestrictedBeforeApplied(t *testing.T) {
	_, client := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	at := "10.1.0.1:80"
	loose := desired(frontend(at))
	tight := desired(frontend(at, sources("10.9.0.0/16")))
	must(t, h.Prepare(t.Context(), loose))
	must(t, h.Finish(t.Context(), loose.Frontends))
	checkAttempt(t, client, at, open)
	must(t, h.Prepare(t.Context(), tight))
	checkAttempt(t, client, at, silence)
	must(t, h.Finish(t.Context(), loose.Frontends)) // simulates that the frontend could not be applied
	checkAttempt(t, client, at, silence)
	must(t, h.Prepare(t.Context(), tight))
	must(t, h.Finish(t.Context(), tight.Frontends))
	must(t, h.Prepare(t.Context(), loose))
	checkAttempt(t, client, at, silence)
	must(t, h.Finish(t.Context(), loose.Frontends))
	checkAttempt(t, client, at, open)
}

// TestGuardDamage damages each part of the guard. Intact must report the damage, and the next round
// must repair the guard.
func TestGuardDamage(t *testing.T) {
	_, client := network(t)
	o := options(t, xtables.NFT)
	o.Interface, o.Mode.Forward = "lo", true
	h := newHost(t, o)
	listen(t, 80)
	listen(t, 22)
	frontends := []*balancer.Frontend{frontend("10.96.0.10:80", sources("10.1.0.0/24"))}
	apply(t, h, frontends...)
	table := func(command string) []string { return append([]string{"nft"}, strings.Fields(command)...) }
	damages := [][]string{
		{"iptables-nft", "-w", "-F", "INPUT"},
		{"iptables-nft", "-w", "-R", "VIPD-FORWARD", "1", "-j", "DROP"},
		{"iptables-nft", "-w", "-D", "FORWARD", "-m", "connmark", "--mark", "0x8000/0x8000", "-j", "VIPD-FORWARD"},
		table("flush ruleset"),
		table("delete table ip vipd-guard"),
		table("flush chain ip vipd-guard prerouting"),
		table("flush table ip vipd-guard"),
		table("insert rule ip vipd-guard input accept"),
		{"sh", "-c", `nft replace rule ip vipd-guard input handle $(nft -a list chain ip vipd-guard input | sed -n 's/.* # handle //p' | tail -1) accept`},
		table("delete chain ip vipd-guard source"),
		table("add chain ip vipd-guard input { policy drop; }"),
		table("add table ip vipd-guard { flags dormant; }"),
		table("flush set ip vipd-guard held"),
		table("flush set ip vipd-guard onearm"),
		table("delete element ip vipd-guard allowed { 10.96.0.10 . tcp . 80 . 10.1.0.0/24 }"),
		table("add element ip vipd-guard served { 10.96.0.10 . tcp . 22 }"),
	}
	for _, damage := range damages {
		if out, err := exec.Command(damage[0], damage[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", damage, err, out)
		}
		lab.Eventually(t, deadlineIn, fmt.Sprintf("%q to be noticed", damage), func() error { // the kernel removes rules of nf_tables with a delay
			if reason, err := h.Intact(t.Context()); reason == "" || err != nil {
				return fmt.Errorf("reason = %q, %w", reason, err)
			}
			return nil
		})
		h.Resync(true)
		apply(t, h, frontends...)
		checkIntact(t, h)
		checkAttempt(t, client, "10.96.0.10:80", open)
		checkAttempt(t, client, "10.96.0.10:22", refused)
	}
}

// TestUnprivileged runs a Host as the user "nobody". VIPs on loopback and the host's own addresses
// must be served. Everything else must cause a problem with advice.
func TestUnprivileged(t *testing.T) {
	const mark = "VIPD_TEST_NOBODY"
	if os.Getenv(mark) == "" {
		network(t)
		binary := "/run/vipd-host.test" // in a directory that any user may enter, and that is private to this lab
		text, err := os.ReadFile(os.Args[0])
		must(t, err)
		must(t, os.WriteFile(binary, text, 0o755))
		self := exec.Command(binary, "-test.run=^TestUnprivileged$", "-test.v")
		self.Env = append(os.Environ(), mark+"=yes")
		self.Dir = "/"
		self.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := self.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestUnprivileged") {
			t.Fatalf("TestUnprivileged as nobody: %v, want PASS:\n%s", err, out)
		}
		return
	}
	for _, device := range []string{"vipd0", "lo"} {
		o := DefaultOptions()
		o.RunDir, o.Interface = "/nonexistent/vipd", device
		checkUnprivileged(t, o)
	}
}

func checkUnprivileged(t *testing.T, o Options) {
	t.Helper()
	h, err := New(o)
	must(t, err)
	apply(t, h, frontend("127.0.0.1:8080"), frontend("[::1]:8080"), frontend("10.1.0.1:8080"))
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems with loopback VIPs and own addresses = %v, want none", p)
	}
	if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
		t.Fatalf("Intact = %q, %v; want no reason", reason, err)
	}
	d := desired(frontend("10.96.0.10:80"), frontend("10.1.0.1:80", sources("10.0.0.0/8")))
	must(t, h.Prepare(t.Context(), d))
	must(t, h.Finish(t.Context(), d.Frontends))
	if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
		t.Fatalf("Intact = %q, %v; want no reason", reason, err)
	}
	text := fmt.Sprint(h.Problems())
	for _, want := range []string{"10.96.0.10 is not local", "run as root", "source_ranges are not enforced"} {
		if !strings.Contains(text, want) {
			t.Errorf("problems lack %q:\n%s", want, text)
		}
	}
	own, _, err := h.LocalAddresses(nil)
	must(t, err)
	if !slices.Contains(own, netip.MustParseAddr("10.1.0.1")) {
		t.Errorf("own addresses = %v, want 10.1.0.1 to be among them", own)
	}
	must(t, h.Close())
}
