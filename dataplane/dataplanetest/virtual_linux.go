package dataplanetest

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// hasVirtualServers reports whether IPVS is loaded in the kernel.
func hasVirtualServers(t testing.TB) bool {
	t.Helper()
	_, err := os.Stat("/proc/thread-self/net/ip_vs")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// virtualServers returns the kernel's virtual servers in ipvsadm's format. Each key is the name of
// a virtual server, such as "-t 10.96.0.10:80", and the value contains its lines. While virtual
// servers are added or removed, the kernel may list another server twice or not at all. Therefore,
// virtualServers reads lists until two consecutive lists are equal.
func virtualServers(t testing.TB) map[string]string {
	t.Helper()
	all, list := map[string]string{}, ""
	wait.For(t, 10*time.Second, "two equal lists of virtual servers", func() bool {
		last := list
		list = run(t, "ipvsadm", "-S", "-n")
		return list == last
	})
	for line := range strings.Lines(list) {
		words := strings.Fields(line)
		name := strings.Join(words[1:3], " ")
		all[name] += line
	}
	return all
}

// foreignServers contains foreign virtual servers for ipvsadm --restore. The first has the VIP of
// the service web, but another port. The last (contestedServers) have the addresses and ports of
// this service's UDP frontends.
const foreignServers = `-A -t 10.96.0.10:443 -s wlc -p 600
-a -t 10.96.0.10:443 -r 10.2.1.2:8080 -m -w 3
-a -t 10.96.0.10:443 -r 10.2.2.2:8080 -m -w 1
-A -u [fd00:96::10]:53 -s rr
-A -t 10.97.0.1:80 -s rr
-a -t 10.97.0.1:80 -r 10.2.3.2:8080 -m -w 1
-A -t [fd00:97::1]:80 -s mh -b mh-port
-a -t [fd00:97::1]:80 -r [fd02:2::2]:80 -i -w 7
-A -f 7 -s sh
-a -f 7 -r 10.2.2.2:0 -g -w 0
` + contestedServers

const contestedServers = `-A -u 10.96.0.10:80 -s rr
-a -u 10.96.0.10:80 -r 10.2.3.2:8080 -m -w 1
-A -u [fd00:96::10]:80 -s wrr
`

// putForeignServers adds foreign virtual servers until the test ends. It returns all virtual
// servers that exist afterwards.
func (s *Subject) putForeignServers(t testing.TB) map[string]string {
	t.Helper()
	pipe(t, foreignServers, "ipvsadm", "--restore")
	all := virtualServers(t)
	s.foreign = all
	t.Cleanup(func() {
		s.foreign = nil
		for name := range virtualServers(t) {
			if _, ok := all[name]; ok {
				run(t, "ipvsadm", append([]string{"-D"}, strings.Fields(name)...)...)
			}
		}
	})
	return all
}

// sameServers checks that foreign virtual servers have not changed.
func sameServers(t testing.TB, when string, before map[string]string) {
	t.Helper()
	after := virtualServers(t)
	for name, was := range before {
		if after[name] != was {
			t.Fatalf("%s: foreign virtual server %s =\n%s\nwant\n%s", when, name, after[name], was)
		}
	}
}

// onlyServers checks that no virtual servers exist except the wanted ones.
func onlyServers(t testing.TB, when string, wanted map[string]string) {
	t.Helper()
	for name, text := range virtualServers(t) {
		if _, ok := wanted[name]; !ok {
			t.Errorf("%s: unexpected virtual server =\n%s\nwant none of vipd's virtual servers", when, text)
		}
	}
}

// testForeignServers runs a dataplane while foreign virtual servers exist. These servers must
// remain and continue to serve clients. A frontend may fail only while a foreign virtual server has
// the frontend's address and port.
func testForeignServers(t *testing.T, s *Subject) {
	if !hasVirtualServers(t) {
		t.Skip("needs a kernel with IPVS")
	}
	root := strings.TrimSuffix(t.Name(), "/foreign-servers")
	w := layouts()[0].build(t, lab.New(t))
	for _, other := range []string{"10.97.0.1/32", "fd00:97::1/128"} {
		w.host.AddAddr("lo", other)
	}
	w.host.Sysctl("net.ipv4.ip_forward", "1")
	before := s.putForeignServers(t)
	web := newService("web", w.vip, endpoints(w.servers...)...)
	web.Scheduler = balancer.RoundRobin // one of the foreign virtual servers has the same scheduler
	other := newService("other", vipN(30), endpoints(w.servers...)...)

	if s.Survives {
		e := errand{Local: w.own, Services: []*balancer.Service{other}}
		for _, server := range w.servers {
			e.Servers = append(e.Servers, server.addr)
		}
		c := startChild(t, root, e)
		c.awaitReady()
		c.start()
		(&rig{T: t}).pause(100 * time.Millisecond)
		c.kill()
		sameServers(t, "after a kill", before)
	}
	r := newStill(t, s, w)
	r.drive()
	theirs := startPulse(r, keyOf(netip.MustParseAddr("10.97.0.1"), vipPort, balancer.TCP))
	r.apply(other)
	checkContested(r, web, other, before)
	h := newHistory(11, w.servers, 100, 6, other)
	changes := max(20, wait.Load(100))
	applyHistory(r, h, changes)
	sameServers(t, "after changes", before)
	checkUndisturbed(r, []*pulse{theirs}, "changes to other services")
	r.stop()
	replaceDataplane(r, true)
	sameServers(t, "after closing and keeping", before)
	if s.Cleanup != nil {
		s.Cleanup(t)
		sameServers(t, "after a cleanup", before)
		onlyServers(t, "after a cleanup", before)
	}
	replaceDataplane(r, false)
	sameServers(t, "after closing", before)
	onlyServers(t, "after closing", before)
	r.steer(driverProbe) // this engine removes all services when the test ends
}

// checkContested applies a service while foreign virtual servers have the same addresses and ports
// as some of its frontends. The remaining frontends must be served, and the error must give the
// reason. After the foreign servers are removed, all frontends must be served.
func checkContested(r *rig, web, other *balancer.Service, before map[string]string) {
	if !r.s.VirtualServers {
		r.apply(web, other)
		sameServers(r, "after the start", before)
		return
	}
	r.set(web, other)
	contested := keysOf(r.w.vip, balancer.UDP)
	r.Eventually("the failure of exactly the contested frontends", func() error {
		failing := r.engine.Status().Failing
		for _, k := range contested {
			if err := failing[k]; err == nil || !strings.Contains(err.Error(), k.Addr.String()) || len(strings.Fields(err.Error())) < 5 {
				return fmt.Errorf("error of %s = %q, want a sentence that names its address", k, err)
			}
		}
		if len(failing) > len(contested) {
			return fmt.Errorf("number of failing frontends = %d, want only the contested frontends: %v", len(failing), failing)
		}
		return nil
	})
	for _, k := range keysOf(r.w.vip, balancer.TCP) {
		r.Eventually("service at the other frontends", func() error { _, err := r.ask(r.w.client, k); return err })
	}
	sameServers(r, "after the start", before)
	revision := r.set(other) // vipd must not remove foreign servers together with its own
	if err := r.wait(revision); err != nil {
		r.Error(err)
	}
	sameServers(r, "after the removal of a service", before)
	revision = r.set(web, other)
	for line := range strings.Lines(contestedServers) {
		if words := strings.Fields(line); words[0] == "-A" {
			name := strings.Join(words[1:3], " ")
			run(r, "ipvsadm", append([]string{"-D"}, words[1:3]...)...)
			delete(before, name)
		}
	}
	if err := r.wait(revision); err != nil {
		r.Errorf("error after the removal of foreign servers = %v, want nil", err)
	}
	for _, k := range contested {
		checkMeetsAll(r, k)
	}
}

func checkMeetsAll(r *rig, key balancer.Key) {
	r.Helper()
	if got := r.tally(r.w.client, key, 4*len(r.w.servers)); len(got) != len(r.w.servers) {
		r.Errorf("%s: answers by server = %v, want answers from all servers", key, got)
	}
}

// VirtualServerDamages returns named functions for Subject.Scratches. Each damages the IPVS virtual
// servers at heldVIP, and affects no other service.
func VirtualServerDamages() map[string]func(t testing.TB) {
	at, at6 := []string{"-t", heldVIP()[0].String() + ":80"}, []string{"-t", "[" + heldVIP()[1].String() + "]:80"}
	return map[string]func(t testing.TB){
		"virtual-server": func(t testing.TB) { run(t, "ipvsadm", append([]string{"-D"}, at...)...) },
		"destinations": func(t testing.TB) { // removes a destination, and changes the weight of another virtual server's destination to 0
			run(t, "ipvsadm", append(append([]string{"-d"}, at...), "-r", "10.2.1.2:8080")...)
			run(t, "ipvsadm", append(append([]string{"-e"}, at6...), "-r", "[fd02:1::2]:8080", "-m", "-w", "0")...)
		},
	}
}

// ClearVirtualServers is a function for Subject.Damage. It removes every virtual server, like
// ipvsadm -C.
func ClearVirtualServers(t testing.TB) {
	t.Helper()
	run(t, "ipvsadm", "-C")
}

// leftServers returns the names of all virtual servers, including foreign ones. If the subject does
// not use IPVS, it returns nil.
func (s *Subject) leftServers(t testing.TB) []string {
	t.Helper()
	if !s.VirtualServers || !hasVirtualServers(t) {
		return nil
	}
	text, err := os.ReadFile("/proc/thread-self/net/ip_vs") // this is faster than ipvsadm
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && slices.Contains([]string{"TCP", "UDP", "SCTP", "FWM"}, words[0]) {
			all = append(all, words[0]+" "+words[1])
		}
	}
	return all
}
