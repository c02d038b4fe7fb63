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

// TestGuard asks for ports of held and of own addresses, from the client and from the host itself, in both families.
func TestGuard(t *testing.T) {
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
				t.Errorf("%s does not answer %s's ping", vip, from.Name)
			}
		}
		checkAttempt(t, from, "10.1.0.1:22", open) // the host's own: never touched
		checkUDPRefused(t, from, "10.96.0.10:22")
		checkUDPRefused(t, from, "[fd00:96::10]:22")
	}

	// A port opens when its frontend is applied, not before, and closes when it goes.
	more := desired(frontend("10.96.0.10:80"), frontend("10.96.0.10:22"))
	must(t, h.Prepare(t.Context(), more))
	checkAttempt(t, client, "10.96.0.10:22", refused)
	must(t, h.Finish(t.Context(), more.Frontends))
	checkAttempt(t, client, "10.96.0.10:22", open)
	apply(t, h, frontend("10.96.0.10:80"))
	checkAttempt(t, client, "10.96.0.10:22", refused)

	// What is established lives on.
	c, err := client.Dial(t.Context(), "tcp", "10.96.0.10:80")
	must(t, err)
	must(t, c.Close())
	checkIntact(t, h)
}

// checkUDPRefused sends a datagram, and waits for the ICMP error.
func checkUDPRefused(t *testing.T, from *lab.NS, to string) {
	t.Helper()
	c, err := from.Dial(t.Context(), "udp", to)
	must(t, err)
	defer func() { _ = c.Close() }()
	_, err = c.Write([]byte("hello"))
	must(t, err)
	must(t, c.SetReadDeadline(deadline()))
	if _, err = c.Read(make([]byte, 10)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Fatalf("a datagram from %s to %s: got %v, want it refused", from.Name, to, err)
	}
}

// TestSourceRanges holds VIPs, the host's own addresses and node ports to who may connect.
func TestSourceRanges(t *testing.T) {
	l, client := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	vips := []string{"10.96.0.10:80", "[fd00:96::10]:80", "10.1.0.1:80", "[fd01::1]:80"}
	with := func(networks ...string) []*balancer.Frontend {
		var out []*balancer.Frontend
		for _, v := range vips {
			f := frontend(v, sources(networks...))
			f.NodePort = strings.Contains(v, "1.0.1")
			out = append(out, f)
		}
		return out
	}
	for _, c := range []struct {
		name     string
		networks []string
		v4, v6   outcome
	}{
		{"nobody excluded", nil, open, open},
		{"others", []string{"10.9.0.0/16", "fd09::/16"}, silence, silence},
		{"the client", []string{"10.9.0.0/16", "10.1.0.2/32", "fd01::2/128"}, open, open},
		{"one family", []string{"10.1.0.0/24"}, open, silence},
		{"all of one family", []string{"0.0.0.0/0"}, open, silence},
		{"all of the other", []string{"::/0"}, silence, open},
		{"nobody excluded any more", nil, open, open},
	} {
		frontends := with(c.networks...)
		if c.networks != nil {
			// Restrictions are in force before the frontend is applied, when nothing more than before may come in.
			must(t, h.Prepare(t.Context(), desired(frontends...)))
		}
		apply(t, h, frontends...)
		for _, vip := range vips {
			want := c.v4
			if strings.HasPrefix(vip, "[") {
				want = c.v6
			}
			if got := attempt(t, client, vip, want); got != want {
				t.Errorf("%s: the client to %s: got %s, want %s", c.name, vip, got, want)
			}
			if got := attempt(t, l.Host(), vip, open); got != open {
				t.Errorf("%s: the host itself to %s: got %s, want open", c.name, vip, got)
			}
		}
		checkIntact(t, h)
	}
}

// TestRestrictedBeforeApplied looks between Prepare and Finish.
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
	must(t, h.Finish(t.Context(), loose.Frontends)) // applying it failed
	checkAttempt(t, client, at, silence)
	must(t, h.Prepare(t.Context(), tight))
	must(t, h.Finish(t.Context(), tight.Frontends))
	must(t, h.Prepare(t.Context(), loose))
	checkAttempt(t, client, at, silence)
	must(t, h.Finish(t.Context(), loose.Frontends))
	checkAttempt(t, client, at, open)
}

// TestDrift has others damage the guard in every way that a look has to find.
func TestDrift(t *testing.T) {
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
		lab.Eventually(t, deadlineIn, fmt.Sprintf("%q to be noticed", damage), func() error { // nft frees rules a moment later
			if reason, err := h.Intact(t.Context()); reason == "" || err != nil {
				return fmt.Errorf("reason %q, %w", reason, err)
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

// TestForeign holds chains, sets and addresses of others to what they were, through a start, a hundred changes, a dry
// and a real Cleanup.
func TestForeign(t *testing.T) {
	bothBackends(t, func(t *testing.T, backend xtables.Variant) {
		l, _ := network(t)
		l.Host().AddAddr("lo", "10.96.0.99/32")
		for _, line := range [][]string{
			{"ipset", "create", "foreign", "hash:ip"}, {"ipset", "add", "foreign", "10.96.0.10"},
			{"iptables-nft", "-N", "FOREIGN"}, {"iptables-nft", "-A", "FOREIGN", "-m", "set", "--match-set", "foreign", "src", "-j", "ACCEPT"},
			{"iptables-nft", "-A", "INPUT", "-m", "comment", "--comment", "jumps to -j VIPD-GUARD not", "-j", "FOREIGN"},
			{"iptables-legacy", "-A", "INPUT", "-p", "sctp", "-j", "ACCEPT"},
			{"ip6tables-legacy", "-t", "mangle", "-A", "PREROUTING", "-p", "sctp", "-j", "ACCEPT"},
			{"iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.0/24", "-j", "MASQUERADE"},
			{"iptables-nft", "-t", "mangle", "-A", "FORWARD", "-m", "mark", "--mark", "0x4000/0x4000", "-j", "MARK", "--set-xmark", "0x1/0x1"},
		} {
			if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%q: %v: %s", line, err, out)
			}
		}
		t.Cleanup(func() {
			for _, line := range []string{
				"iptables-nft -D INPUT -j FOREIGN -m comment --comment x", "iptables-nft -t nat -F", "iptables-nft -t mangle -F", "iptables-nft -F", "iptables-nft -X FOREIGN",
				"iptables-legacy -F", "ip6tables-legacy -t mangle -F", "ipset destroy foreign",
			} {
				words := strings.Fields(line)
				_ = exec.Command(words[0], words[1:]...).Run() // the first is there for nothing when -F does it
			}
		})
		warm(t)
		before := everything(t)
		o := options(t, backend)
		o.Interface, o.Mode.Forward = "lo", true
		h := newHost(t, o)
		for i := range 100 {
			var frontends []*balancer.Frontend
			for j := range 6 {
				edits := []func(*balancer.Frontend){nil, nil, sources("10.0.0.0/8", "fd00::/8"), dropping}[(i/10+j)%4]
				f := frontend([]string{fmt.Sprintf("10.96.0.%d:80", 1+(i*j)%7), fmt.Sprintf("[fd00:96::%d]:80", 1+(i+j)%7)}[j%2])
				if edits != nil {
					edits(f)
				}
				frontends = append(frontends, f)
			}
			apply(t, h, frontends...)
		}
		checkIntact(t, h)
		must(t, h.Close())

		held := everything(t)
		would, err := Cleanup(t.Context(), o, true)
		must(t, err)
		checkLeft(t, held) // by the dry run
		did, err := Cleanup(t.Context(), o, false)
		must(t, err)
		if !slices.Equal(would, did) || len(did) < 10 {
			t.Fatalf("it would have done\n%s\nand did\n%s", strings.Join(would, "\n"), strings.Join(did, "\n"))
		}
		checkLeft(t, before)
		if did, err = Cleanup(t.Context(), o, false); err != nil || len(did) != 0 {
			t.Fatalf("again: %q, %v", did, err)
		}
	})
}

// TestUnprivileged runs as nobody: loopback VIPs and own addresses are served, the rest are problems with a way out.
func TestUnprivileged(t *testing.T) {
	const mark = "VIPD_TEST_NOBODY"
	if os.Getenv(mark) == "" {
		network(t)
		binary := "/run/vipd-host.test" // a folder that everybody may enter, and of this lab alone
		text, err := os.ReadFile(os.Args[0])
		must(t, err)
		must(t, os.WriteFile(binary, text, 0o755))
		self := exec.Command(binary, "-test.run=^TestUnprivileged$", "-test.v")
		self.Env = append(os.Environ(), mark+"=yes")
		self.Dir = "/"
		self.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := self.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestUnprivileged") {
			t.Fatalf("as nobody: %v\n%s", err, out)
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
		t.Fatalf("problems with loopback VIPs and own addresses: %v", p)
	}
	if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
		t.Fatalf("not intact: %q, %v", reason, err)
	}
	d := desired(frontend("10.96.0.10:80"), frontend("10.1.0.1:80", sources("10.0.0.0/8")))
	must(t, h.Prepare(t.Context(), d))
	must(t, h.Finish(t.Context(), d.Frontends))
	if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
		t.Fatalf("not intact: %q, %v", reason, err)
	}
	text := fmt.Sprint(h.Problems())
	for _, want := range []string{"10.96.0.10 is not local", "run as root", "source_ranges are not enforced"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	own, _, err := h.LocalAddresses(nil)
	must(t, err)
	if !slices.Contains(own, netip.MustParseAddr("10.1.0.1")) {
		t.Errorf("own addresses: %v", own)
	}
	must(t, h.Close())
}
