package owner

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/cmd/internal/api"
	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestOneOwner injects one fault after another into the owner of a VIP. Soon after each fault the
// VIP must be answered again, and two hosts must never answer at the same time.
func TestOneOwner(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	g := f.waitForOwner()
	if !strings.Contains(g.vipctl("get", "vips"), g.ns.Name) {
		t.Errorf("vipctl get vips = %s, want the owner %s", g.vipctl("get", "vips"), g.ns.Name)
	}
	confirmed := regexp.MustCompile(`which is confirmed by gw\d \(\d\.\d+s\s+ago\)`)
	wait.For(t, wait.Patience, "vipctl describe vip to name the owner's juror", func() bool {
		return confirmed.MatchString(g.vipctl("describe", "vip", vip.String()))
	})
	wait.For(t, wait.Patience, "heartbeats of both peers on both networks", func() bool {
		s := f.hosts[0].status()
		return s != nil && len(s.Peers) == 4 && s.ConfirmedFor.Count > 0 && !slices.ContainsFunc(s.Peers, func(p api.OwnerPeer) bool { return !p.Up })
	})
	for _, c := range []fault{
		{"cut from its peers", nft("add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in udp dport 9898 drop"), nft("delete table inet cut"), false},
		{"VIPs deleted", func(g *gateway) {
			g.ns.Exec("ip", "addr", "del", vip.String()+"/32", "dev", "lan")
			g.ns.Exec("ip", "addr", "del", vip6.String()+"/128", "dev", "lan")
		}, func(g *gateway) { g.event("restored VIPs that were missing from their interfaces") }, false},
		{"nft flush ruleset", nft("flush ruleset"), func(*gateway) {}, false},
		lanLost,
		{"router out of reach", nft("add table netdev cut; add chain netdev cut in { type filter hook ingress device lan priority -510; }; " +
			"add rule netdev cut in arp operation reply arp saddr ip 10.9.0.50 drop"), nft("delete table netdev cut"), true},
		{"drain", func(g *gateway) { g.vipctl("drain", "--node", g.ns.Name) }, func(g *gateway) { g.vipctl("undrain", "--node", g.ns.Name) }, true},
		cutFromEtcd,
		f.etcdFrozen(0),
		planned,
		cutOff,
		{"node standby", func(g *gateway) { f.standsBy(g) }, func(g *gateway) { g.vipctl("node", "resume", g.ns.Name); g.waitForVIP(true) }, true},
		killed,
		{"SIGTERM", signal(syscall.SIGTERM), (*gateway).start, true},
		stopped,
	} {
		f.meets(c)
	}

	g = f.waitForOwner()
	f.flaps(g)
	f.waitForOwner()
	f.answers(vip, vip6)

	// No host may add another machine's address until the address is free. A machine outside the
	// fleet that has a VIP must be reported.
	wait.For(t, wait.Patience, taken.String()+" to remain at the client", func() bool {
		g := f.waitForOwner()
		return slices.Contains(g.answer().Unowned, taken) && g.problem(taken.String()+" is not owned here, because a host outside the fleet has it")
	})
	if f.has(taken) {
		t.Errorf("a host has the address %s, want none", taken)
	}
	// Hosts must use a new key without a pause.
	foreign := f.waitForOwner().answer().Foreign
	p := f.probe()
	f.hosts[0].vipctl("ownership", "rekey")
	f.hosts[0].vipctl("ownership", "rekey")
	if gap := f.judge(p, "new key"); gap > wait.Bound(200*time.Millisecond) {
		t.Errorf("while the key was replaced: time without an answer = %s, want at most 200ms", gap)
	}
	if s := f.waitForOwner().answer(); s.Foreign != foreign {
		t.Errorf("while the key was replaced: heartbeats refused = %d, want 0", s.Foreign-foreign)
	}
	f.client.DelAddr("lan", taken.String()+"/32")
	wait.For(t, wait.Patience, "an owner of the stranger's former address", func() bool { return f.has(taken) })
	f.devices()
	f.many()
	f.client.AddAddr("lan", vip.String()+"/32")
	wait.For(t, wait.Patience, "the problem of a stranger with the VIP", func() bool {
		g := f.owner()
		return g != nil && g.problem("a host outside the fleet answers for "+vip.String())
	})
}

// flaps briefly disables a host's link, so the kernel removes the link's IPv6 addresses. As a
// network manager would, it then adds the host's own address again.
func (f *fleet) flaps(g *gateway) {
	own := fmt.Sprintf("fd09::%d/64", 11+slices.Index(f.hosts, g))
	g.ns.Exec("sh", "-c", "ip link set lan down; ip link set lan up; ip addr add "+own+" dev lan nodad")
}

// standsBy puts a host on standby. When vipctl returns, the VIPs must have moved. After that, the
// host must also release the VIPs that only this host can have.
func (f *fleet) standsBy(g *gateway) {
	g.waitForVIP(true)
	g.vipctl("node", "standby", g.ns.Name, "--wait", "--reason", "kernel")
	if all := g.bound(); len(all) > 0 {
		f.t.Errorf("%s after vipctl node standby --wait: VIPs = %v, want none", g.ns.Name, all)
	}
	g.waitForVIP(false)
	if s := g.answer(); !slices.ContainsFunc(s.Events, func(e api.OwnerEvent) bool { return strings.HasSuffix(e.Text, `: "kernel")`) }) {
		f.t.Errorf("%s: events with the reason for the standby = 0, want 1", g.ns.Name)
	}
}

// has reports whether any host has a VIP.
func (f *fleet) has(v netip.Addr) bool {
	return slices.ContainsFunc(f.hosts, func(g *gateway) bool { return slices.Contains(g.bound(), v) })
}

// fault describes an owner's failure. The function fault causes it, and repair ends it. moves
// reports whether the owner's VIPs must move.
type fault struct {
	name          string
	fault, repair func(*gateway)
	moves         bool
}

func nft(commands string) func(*gateway) { return func(g *gateway) { g.ns.Exec("nft", commands) } }

// cut returns a function that drops all packets that arrive or leave through these devices.
func cut(devices string) func(*gateway) {
	return nft(fmt.Sprintf("add table netdev cut; add chain netdev cut in { type filter hook ingress devices = { %[1]s } priority -510; policy drop; }; "+
		"add chain netdev cut out { type filter hook egress devices = { %[1]s } priority -510; policy drop; }", devices))
}

func signal(s os.Signal) func(*gateway) { return func(g *gateway) { _ = g.cmd.Process.Signal(s) } }

var (
	planned = fault{"vip move", func(g *gateway) { g.move(vip.String()) }, func(*gateway) {}, true}
	killed  = fault{"kill -9", signal(syscall.SIGKILL), (*gateway).start, true}
	stopped = fault{"stopped", signal(syscall.SIGSTOP), signal(syscall.SIGCONT), true}
	lanLost = fault{"LAN lost", cut("lan"), nft("delete table netdev cut"), true}
	// cutOff cuts a host off from all networks. powerOff also kills its programs.
	cutOff      = fault{"cut off from all", func(g *gateway) { cut("lan, other")(g); cutFromEtcd.fault(g) }, func(g *gateway) { cutFromEtcd.repair(g); nft("delete table netdev cut")(g) }, true}
	powerOff    = fault{"power-off", func(g *gateway) { cutOff.fault(g); killed.fault(g); _ = g.daemon.Process.Kill() }, func(g *gateway) { cutOff.repair(g); g.boot() }, true}
	cutFromEtcd = fault{"cut from etcd", func(g *gateway) { g.relays[0].Cut() }, func(g *gateway) { g.relays[0].Heal() }, false}
	// The following faults are for userspace mode, which can't serve without vipd.
	frozenDaemon = fault{"vipd stopped", func(g *gateway) { _ = g.daemon.Process.Signal(syscall.SIGSTOP) }, func(g *gateway) { _ = g.daemon.Process.Signal(syscall.SIGCONT) }, true}
	killedDaemon = fault{"vipd killed", func(g *gateway) { _ = g.daemon.Process.Kill() }, (*gateway).serve, true}
)

// etcdFrozen pauses etcd for the duration span.
func (f *fleet) etcdFrozen(span time.Duration) fault {
	return fault{"etcd frozen", func(*gateway) { f.etcd.Members[0].Pause(); time.Sleep(span) }, func(*gateway) { f.etcd.Members[0].Resume() }, false}
}

// tooLate is how late an owner may be at most. If the owner was later than that, a move without a
// fault is excused.
const tooLate = 100 * time.Millisecond

// meets injects a fault into the owner, and returns how long no host answered. Two hosts must never
// answer at the same time.
func (f *fleet) meets(c fault) (gap time.Duration) {
	f.t.Helper()
	g := f.waitForOwner()
	talk, took := f.talk(), f.takeovers()
	p := f.probe()
	c.fault(g)
	if c.moves {
		wait.For(f.t, wait.Patience, "another owner after "+c.name, func() bool { o := f.owner(); return o != nil && o != g })
	} else {
		time.Sleep(time.Second) // longer than an unconfirmed session lasts; no VIP may move in this time
		if o, late := f.owner(), f.late(); o != nil && o != g && late < tooLate {
			f.t.Errorf("%s: the VIP moved, but the owner was late by only %s; want no move", c.name, late)
		}
	}
	c.repair(g)
	back := f.waitForOwner() == g // on a busy machine, a host that was paused may own the VIP again
	f.answers(vip, vip6)
	// The kernel resets the connections of a killed program. If the VIP moves only briefly,
	// connections may survive. On a busy machine, a VIP may move briefly even if it should stay.
	err := echo(talk)
	ended := errors.Is(err, syscall.ECONNRESET) || c.name == killedDaemon.name && (errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE))
	moment := c.moves && back || !c.moves && f.takeovers() != took && f.late() >= tooLate
	if c.moves != ended && !moment {
		f.t.Errorf("%s: open connection: error = %v, ended = %t, want %t", c.name, err, ended, c.moves)
	}
	return f.judge(p, c.name)
}

// judge stops the probers, and returns how long no host answered.
func (f *fleet) judge(p probers, what string) time.Duration {
	f.t.Helper()
	udp, tcp, dual := p.gap()
	gap := max(udp, tcp)
	f.t.Logf("%s in %s mode: nobody answered for %s by UDP, %s by TCP", what, f.mode, udp.Round(time.Millisecond), tcp.Round(time.Millisecond))
	if len(dual) > 0 {
		f.t.Errorf("%s: probes answered by two hosts = %d, want 0; first: %v", what, len(dual), dual[0])
	}
	if gap > wait.Bound(0) {
		f.t.Errorf("%s: no host answered for %s, want at most %s", what, gap, wait.Bound(0))
	}
	return gap
}

// losesDaemon kills vipd on the owner's host, so the host's services stop. The VIP must move to
// another host. Then losesDaemon starts all of the host's programs again.
func (f *fleet) losesDaemon() {
	f.t.Helper()
	g := f.waitForOwner()
	p := f.probe()
	_ = g.daemon.Process.Kill()
	wait.For(f.t, wait.Patience, "another owner after kill -9 of vipd", func() bool { o := f.owner(); return o != nil && o != g })
	f.answers(vip, vip6)
	f.judge(p, "kill -9 of vipd")
	<-g.gone.Done() // vipd uses the network namespace until it has exited
	if out := g.vipctl("cleanup"); !strings.Contains(out, "stop vipd owner, process") || !strings.Contains(out, "vipd-owner") {
		f.t.Errorf("vipctl cleanup while vipd owner runs: output = %s, want a request to stop vipd owner", out)
	}
	g.boot()
}

// TestOneOwnerInOtherModes moves a VIP and kills its owner, in iptables and userspace mode. The VIP
// must be answered again soon.
func TestOneOwnerInOtherModes(t *testing.T) {
	for _, mode := range []string{"iptables", "userspace"} {
		t.Run(mode, func(t *testing.T) {
			f := newFleet(t, mode, etcdkit.Options{})
			if mode == "userspace" {
				f.losesDaemon() // must come first, because a VIP stays for a minute after three moves
			}
			f.meets(planned)
			f.meets(killed)
		})
	}
}

// TestIPVSOneOwner runs TestOneOwnerInOtherModes in ipvs mode.
func TestIPVSOneOwner(t *testing.T) {
	lab.NeedIPVS(t)
	wait.ShownElsewhere(t, "TestOneOwner, as TestIPVSConnectionsGoOn does here,")
	f := newFleet(t, "ipvs", etcdkit.Options{})
	f.meets(planned)
	f.meets(killed)
}

// TestOwnerDiesWithEtcd kills an owner and etcd's leader, which runs on the same host. Another host
// must own the VIP.
func TestOwnerDiesWithEtcd(t *testing.T) {
	var gaps []time.Duration
	for range wait.Soak(1, 20) {
		t.Run("once", func(t *testing.T) { gaps = append(gaps, diesWithEtcd(t)) })
	}
	if t.Failed() {
		return
	}
	if len(gaps) == 0 {
		t.Skip("every run was skipped; its log has the reason")
	}
	logGaps(t, "kill -9 of the owner and the leader of etcd", gaps)
}

func diesWithEtcd(t *testing.T) (gap time.Duration) {
	// These are the timeouts in examples/etcd. With etcd's defaults of 100 and 1,000 ms, VIPs were
	// unanswered for up to 2.33 s.
	f := newFleet(t, "nftables", etcdkit.Options{Members: 3, Flags: []string{"--heartbeat-interval", "50", "--election-timeout", "500"}})
	f.waitForOwner()
	leader, client := -1, f.etcd.Client()
	wait.For(t, wait.Patience, "the leader of etcd", func() bool {
		leader = slices.IndexFunc(f.etcd.Endpoints(), func(endpoint string) bool {
			s, err := client.Status(t.Context(), endpoint)
			return err == nil && s.Leader == s.Header.MemberId
		})
		return leader >= 0
	})
	g := f.hosts[leader]
	if f.owner() != g {
		g.move(vip.String(), "--to", g.ns.Name)
	}
	wait.For(t, wait.Patience, "the VIP on the host of etcd's leader", func() bool { return f.owner() == g })
	p := f.probe()
	f.etcd.Members[leader].Kill()
	_, _ = g.cmd.Process.Kill(), g.daemon.Process.Kill()
	wait.For(t, wait.Patience, "another owner", func() bool { o := f.owner(); return o != nil && o != g })
	f.answers(vip, vip6)
	return f.judge(p, "kill -9 of the owner and the leader of etcd")
}

// TestForeignFleetsTakeNothing starts hosts of another fleet on the LAN, with another key or
// without permissions in etcd. They must not own a VIP, and must report the reason. These hosts
// must never answer for the first fleet's VIPs, and neither must a vipd without vipd owner.
func TestForeignFleetsTakeNothing(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	f.waitForOwner()
	second, third := etcdkit.Start(t, etcdkit.Options{}), etcdkit.Start(t, etcdkit.Options{})
	third.EnableAuth(etcdkit.User{Name: "half", Password: "secret", Read: []string{"/vipd/"}})
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := f.join(4, second)
	without := f.join(5, third, fmt.Sprintf("etcd.username = \"half\"\netcd.password_file = %q\n", password))
	alone := f.alone(second)
	p := f.probe(append(alone, other, without)...)
	other.boot()
	without.boot()
	for _, g := range alone {
		g.daemon, _ = g.run("vipd", "--config", g.config())
		wait.For(t, wait.Patience, g.ns.Name+" to serve its own programs", func() bool {
			return ask(t, g.ns, netip.AddrPortFrom(vip, probePort)) == g.ns.Name
		})
	}
	wait.For(t, wait.Patience, "the problems of the second fleet's host", func() bool {
		return other.problem(vip.String()+" is not owned here, because a host outside the fleet has it") && other.problem(vip6.String()+" is not owned here")
	})
	wait.For(t, wait.Patience, "the problem of the missing right", func() bool {
		return without.problem("this host can't own VIPs, because it has no session in etcd") && without.problem("/vipd/ownership/")
	})

	// The other etcd is a copy of the fleet's etcd with another key. The host that uses this copy
	// sends heartbeats but receives none. It must not revoke any session.
	signal(syscall.SIGKILL)(other)
	from, to := f.etcd.Client(), second.Client()
	for _, folder := range []string{"nodes/", "sessions/", "vips/"} {
		all, err := from.Get(t.Context(), "/vipd/ownership/"+folder, clientv3.WithPrefix())
		for _, kv := range all.Kvs {
			if err == nil {
				_, err = to.Put(t.Context(), string(kv.Key), string(kv.Value))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	other.start()
	wait.For(t, wait.Patience, "the problem of another key on every host", func() bool {
		return !slices.ContainsFunc(f.hosts, func(g *gateway) bool { return !g.problem("heartbeats with another key") })
	})
	wait.For(t, wait.Patience, "the host with another key to be confirmed by its etcd", func() bool {
		s := other.status()
		return s != nil && s.Gate == "open"
	})
	time.Sleep(2 * time.Second) // a host could own VIPs after 0.8 s
	for _, g := range []*gateway{other, without} {
		if all := g.bound(); len(all) > 0 {
			t.Errorf("%s: VIPs = %v, want none", g.ns.Name, all)
		}
	}
	f.judge(p, "foreign fleets start")
	signal(syscall.SIGKILL)(other)
	f.full()
}

// full makes etcd's database exceed its quota, and kills the owner. No host can own the VIPs then,
// and each must report the reason.
func (f *fleet) full() {
	f.t.Helper()
	dead := f.waitForOwner()
	alarm := func(action etcdserverpb.AlarmRequest_AlarmAction) {
		f.t.Helper()
		r := &etcdserverpb.AlarmRequest{Action: action, Alarm: etcdserverpb.AlarmType_NOSPACE}
		if _, err := etcdserverpb.NewMaintenanceClient(f.etcd.Client().ActiveConnection()).Alarm(f.t.Context(), r); err != nil {
			f.t.Fatal(err)
		}
	}
	alarm(etcdserverpb.AlarmRequest_ACTIVATE)
	signal(syscall.SIGKILL)(dead)
	for _, g := range f.hosts {
		if g != dead {
			wait.For(f.t, wait.Patience, "the problem that etcd is full", func() bool {
				return g.problem("because etcd accepts no writes") && g.problem("database space exceeded; to make etcd writable again, run etcdctl compact")
			})
		}
	}
	alarm(etcdserverpb.AlarmRequest_DEACTIVATE)
	wait.For(f.t, wait.Patience, "another owner once etcd has room", func() bool { o := f.owner(); return o != nil && o != dead })
	f.answers(vip, vip6)
}

// devices adds the first VIP on a device, deletes the device on the VIP's owner, and creates it
// again. Other VIPs must stay on their hosts and be answered throughout.
func (f *fleet) devices() {
	f.t.Helper()
	first := netip.MustParseAddr("10.7.0.100")
	g := f.waitForOwner()
	p, sessions := f.probe(), f.sessions()
	for _, h := range f.hosts {
		h.configure(func(text string) string { return text + fmt.Sprintf("[vips.%q]\nhold = \"one\"\n", first) })
	}
	wait.For(f.t, wait.Patience, "an owner of the first VIP of a device", func() bool { return f.has(first) })
	if !slices.Contains(g.bound(), first) {
		g.move(first.String(), "--to", g.ns.Name)
	}
	wait.For(f.t, wait.Patience, "the first VIP of a device on the owner of another VIP", func() bool { return slices.Contains(g.bound(), first) })
	g.ns.Exec("ip", "link", "del", "third")
	wait.For(f.t, wait.Patience, "another owner of the deleted device's VIP", func() bool {
		return slices.ContainsFunc(f.hosts, func(h *gateway) bool { return h != g && slices.Contains(h.bound(), first) })
	})
	f.third.Join(g.ns, "10.7.0.200/24")
	lab.Eventually(f.t, 10*time.Second, "a move to the new device", func() error { // the VIP can move only once heartbeats arrive on the new device
		return g.ns.Command(f.t.Context(), filepath.Join(g.bin, "vipctl"), "vip", "move", first.String(), "--to", g.ns.Name, "--config", g.config()).Run()
	})
	wait.For(f.t, wait.Patience, "the VIP on the new device", func() bool {
		return strings.Contains(g.ns.Exec("ip", "-o", "addr", "show", "third"), " "+first.String()+"/")
	})
	if now := f.sessions(); !slices.Equal(now, sessions) {
		f.t.Errorf("after a device was replaced: sessions = %v, want %v", now, sessions)
	}
	if o := f.waitForOwner(); o != g {
		f.t.Errorf("another device's VIP: owner = %s, want %s", o.ns.Name, g.ns.Name)
	}
	if gap := f.judge(p, "device replaced"); gap > wait.Bound(300*time.Millisecond) {
		f.t.Errorf("while a device was replaced: time without an answer = %s, want at most 300ms", gap)
	}
}

// configure changes the host's configuration file.
func (g *gateway) configure(change func(string) string) {
	g.t.Helper()
	text, err := os.ReadFile(g.config())
	if err == nil {
		err = os.WriteFile(g.config(), []byte(change(string(text))), 0o600)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// alone returns hosts on which vipd runs without vipd owner: one host for each mode that uses
// netfilter rules.
func (f *fleet) alone(c *etcdkit.Cluster) (all []*gateway) {
	defer func(mode string) { f.mode = mode }(f.mode)
	for i, mode := range []string{"nftables", "iptables", "iptables", "userspace"} {
		more := ""
		if f.mode = mode; i == 2 {
			more = "iptables.backend = \"legacy\"\n"
		}
		all = append(all, f.join(6+i, c, more))
	}
	return all
}

// many adds 1,000 VIPs, removes the only VIP on a device, and kills the host that has the most
// VIPs. The other hosts must own the killed host's VIPs, and must answer a client that has just
// used them.
func (f *fleet) many() {
	f.t.Helper()
	n, sessions := wait.Load(1000), f.sessions()
	want := f.more(n)
	for i, g := range f.hosts {
		g.configure(func(text string) string {
			return text + fmt.Sprintf("[services.many]\nvips = [\"%s\"]\nports = [{ port = %d, target_port = %d, protocol = \"udp\" }]\nendpoints = [{ address = \"10.9.0.%d\" }]\n",
				strings.Join(manyVIPs(n), `", "`), probePort, ownPort, 11+i)
		})
	}
	f.waitForOwner()
	if now := f.sessions(); !slices.Equal(now, sessions) {
		f.t.Errorf("after VIPs were added and removed: sessions = %v, want %v", now, sessions)
	}
	g := slices.MaxFunc(f.hosts, func(a, b *gateway) int { return len(a.answer().Bound) - len(b.answer().Bound) })
	others := slices.DeleteFunc(slices.Clone(f.hosts), func(o *gateway) bool { return o == g })
	all, share := manyVIPs(n), g.answer().Bound
	lost := slices.DeleteFunc(slices.Clone(share), func(a netip.Addr) bool { return !slices.Contains(all, a.String()) })
	f.queryVIPs(lost, g.ns.Name+" to answer for its share", func(host string) bool { return host == g.ns.Name })
	began := time.Now()
	_ = g.cmd.Process.Kill()
	f.queryVIPs(lost, "others to answer for the killed host's VIPs", func(host string) bool { return host != g.ns.Name })
	f.t.Logf("%d VIPs on 3 hosts: others answered a client for the %d VIPs of a killed host after %s", n, len(lost), time.Since(began).Round(time.Millisecond))
	wait.For(f.t, wait.Patience, "other owners of the killed host's VIPs", func() bool { return bound(others) == want })
	f.t.Logf("all %d VIPs had other owners after at most %s", len(share), time.Since(began).Round(time.Millisecond))
}

func manyVIPs(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("10.9.%d.%d", 1+i/250, 1+i%250))
	}
	return all
}

// more adds n VIPs and removes the only VIP on a device. Once all VIPs have owners, it returns the
// number of VIPs.
func (f *fleet) more(n int) int {
	f.t.Helper()
	wait.For(f.t, wait.Patience, "an owner of "+aside.String(), func() bool { return f.has(aside) })
	want := bound(f.hosts) - 1 + n
	var more strings.Builder
	for _, v := range manyVIPs(n) {
		fmt.Fprintf(&more, "[vips.%q]\nhold = \"one\"\n", v)
	}
	for _, g := range f.hosts {
		g.configure(func(text string) string {
			return strings.Replace(text, "[vips.\"10.8.0.100\"]\nhold = \"one\"\n", "", 1) + more.String()
		})
	}
	wait.For(f.t, wait.Patience, "many VIPs to have owners", func() bool { return bound(f.hosts) == want })
	return want
}

// bound returns the total number of VIPs on these hosts. All hosts must run vipd owner.
func bound(hosts []*gateway) (n int) {
	for _, g := range hosts {
		n += len(g.answer().Bound)
	}
	return n
}

// TestStoppedDaemon pauses a process that stands in for vipd with SIGSTOP. The process must count
// as hanging after its own grace period, but not if it is only late.
func TestStoppedDaemon(t *testing.T) {
	daemon := exec.Command("sleep", "600")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = daemon.Process.Kill(), daemon.Wait() }()
	o := New(Options{}, "")
	hangs := func(stopped bool, silent, grace time.Duration) bool {
		wait.For(t, 0, "the signal to work", func() bool { return frozen(daemon.Process.Pid) == stopped })
		o.daemon.report, o.daemon.pid, o.daemon.reportedAt = &api.OwnerReport{Grace: grace}, daemon.Process.Pid, time.Now().Add(-silent)
		return o.daemon.hangs()
	}
	const short, hour = 500 * time.Millisecond, time.Hour
	if hangs(false, hour, short) {
		t.Error("running vipd: hangs() = true, want false")
	}
	if err := daemon.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if hangs(true, 0, hour) || hangs(true, time.Second, hour) {
		t.Error("before the grace period is over: hangs() = true, want false")
	}
	if hangs(true, -hour, short) {
		t.Error("vipd that has just reported: hangs() = true, want false")
	}
	if !hangs(true, time.Second, short) || !o.daemon.reportedAt.IsZero() {
		t.Error("after the grace period: hangs() = false, want true")
	}
	if o.daemon.hangs() {
		t.Error("second call in the same pause: hangs() = true, want false")
	}
}

// TestFenceByOperator kills two of three hosts. The third must not revoke either session, and must
// name the host that it waits for. Once the record of a killed host has expired, the remaining host
// must accept an operator's fence of that host. The fenced host must not own its VIPs again.
func TestFenceByOperator(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	g := f.waitForOwner()
	i := slices.Index(f.hosts, g)
	second, last := f.hosts[(i+1)%3], f.hosts[(i+2)%3]
	vipctl := func(args ...string) (string, error) {
		out, err := last.ns.Command(t.Context(), filepath.Join(f.bin, "vipctl"), append(args, "--config", last.config())...).CombinedOutput()
		return string(out), err
	}
	if out, err := vipctl("node", "fence", g.ns.Name, "--is-off"); err == nil || !strings.Contains(out, "less than 15 s ago") {
		t.Errorf("fencing a host that has just renewed its lease: error = %v, output = %s; want an error", err, out)
	}
	for _, h := range []*gateway{second, g} { // the owner is killed last, so the two other hosts can't revoke its session
		powerOff.fault(h)
	}
	waits := "VIPs of " + g.ns.Name + " have no owner"
	wait.For(t, wait.Patience, "the last host to wait for an operator", func() bool {
		return strings.Contains(strings.Join(strings.Fields(last.vipctl("status")), " "), waits)
	})
	wait.For(t, wait.Patience, "etcd to forget the dead host", func() bool {
		_, err := vipctl("node", "fence", g.ns.Name, "--is-off", "--reason", "smoke")
		return err == nil
	})
	wait.For(t, wait.Patience, "the VIP on the last host", func() bool { return slices.Contains(last.bound(), vip) })
	p := f.probe()
	for _, h := range []*gateway{g, second} {
		powerOff.repair(h)
	}
	if o := f.waitForOwner(); o != last {
		t.Errorf("after %s returned: owner = %s, want %s", g.ns.Name, o.ns.Name, last.ns.Name)
	}
	f.answers(vip, vip6)
	f.judge(p, "fenced host returns")
}

// TestVIPThatKernelRefuses moves a VIP to a host whose kernel refuses the VIP. The host must report
// the reason and pass the VIP to another host. If no other host can own the VIP, the host must add
// it as soon as the kernel permits this.
func TestVIPThatKernelRefuses(t *testing.T) {
	if !wait.Soaking() {
		t.Skip("make soak runs it: on a busy machine, a VIP that moves too often stays for a minute")
	}
	v := netip.MustParseAddr("fd09::101") // has no group, so it has not moved before
	f := newFleet(t, "nftables", etcdkit.Options{}, "", fmt.Sprintf("[vips.%q]\nhold = \"one\"\n", v))
	f.waitForOwner()
	var g *gateway
	has := func(h *gateway) bool { return slices.Contains(h.bound(), v) }
	wait.For(t, wait.Patience, "an owner", func() bool {
		i := slices.IndexFunc(f.hosts, has)
		if i >= 0 {
			g = f.hosts[i]
		}
		return i >= 0
	})
	i := slices.Index(f.hosts, g)
	second, third := f.hosts[(i+1)%3], f.hosts[(i+2)%3]
	ipv6 := func(h *gateway, disabled string) { h.ns.Sysctl("net.ipv6.conf.lan.disable_ipv6", disabled) }
	reason := v.String() + " is not on this host: it can't be added: adding " + v.String() + ": IPv6 is disabled"

	ipv6(second, "1")
	g.move(v.String(), "--to", second.ns.Name)
	wait.For(t, wait.Patience, "the reason, and another owner", func() bool { return second.problem(reason) && (has(g) || has(third)) })

	owner, last := g, third
	if has(third) {
		owner, last = third, g
	}
	second.vipctl("node", "standby", second.ns.Name)
	ipv6(last, "1")
	owner.vipctl("node", "standby", owner.ns.Name)
	wait.For(t, wait.Patience, "the last host to own the VIP that its kernel refuses", func() bool { return last.problem(reason) && !has(last) && !has(owner) })
	ipv6(last, "0")
	wait.For(t, wait.Patience, "the VIP once the kernel accepts it", func() bool { return has(last) && !last.problem(reason) })
}
