package dataplanetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// childVar is what makes Run be the daemon that the case restart kills: what it is to carry out.
const childVar = "VIPD_DATAPLANETEST_CHILD"

// errand is the value of childVar, as JSON.
type errand struct {
	Local    []netip.Addr
	Services []*balancer.Service
}

// ready is the line by which the child says that everything is carried out.
const ready = "dataplanetest: ready"

// runChild carries out the errand until it is killed, or its parent goes.
func runChild(t *testing.T, s *Subject) {
	var e errand
	if err := json.Unmarshal([]byte(os.Getenv(childVar)), &e); err != nil {
		t.Fatal(err)
	}
	d := newDriver(s.New(t), s.newHost(t), quiet(t), balancer.Env{Node: "node", Local: e.Local, NodePortAddresses: e.Local})
	d.start()
	defer d.stop()
	if err := d.wait(d.set(e.Services...)); err != nil {
		t.Fatal(err)
	}
	fmt.Println(ready)
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent at the latest
}

// testRestart has a process that carries services out killed without warning. A new one over what is left comes to
// what is wanted by then, with nothing left over.
func testRestart(t *testing.T, s *Subject) {
	root := strings.TrimSuffix(t.Name(), "/restart")
	w := layouts()[0].build(t, lab.New(t))
	stay := newService("stay", w.vip, endpoints(w.servers...)...)
	gone := newService("gone", vipN(60), endpoints(w.servers...)...)
	change := newService("change", vipN(61), endpoints(w.servers[0])...)
	lose := newService("lose", vipN(62), endpoints(w.servers[0])...)
	fresh := newService("fresh", vipN(63), endpoints(w.servers[1])...)

	kill := startChild(t, root, errand{w.own, []*balancer.Service{stay, gone, change, lose}})
	r := &rig{T: t, s: s, w: w}
	r.mustAsk(w.client, keyOf(w.vip[0], vipPort, balancer.TCP))
	kill()

	r = newStill(t, s, w)
	r.drive()
	change = edited(change, func(s *balancer.Service) { s.Endpoints = endpoints(w.servers[1]) })
	lose = edited(lose, func(s *balancer.Service) { s.Endpoints = nil })
	r.apply(stay, change, lose, fresh)
	r.each(func(r *rig, key balancer.Key) {
		at := func(vip addrs) balancer.Key { return keyOf(vip.of(key.Addr), vipPort, key.Proto) }
		r.mustAsk(w.client, key)
		for _, vip := range []addrs{vipN(61), vipN(63)} {
			if got := r.mustAsk(w.client, at(vip)).Server; got != "s2" {
				r.Errorf("%s is answered by %s, want s2", at(vip), got)
			}
		}
		r.refused(w.client, at(vipN(62)))
		if a, err := r.askFrom(w.client, netip.Addr{}, at(vipN(60)), silence); err == nil {
			r.Errorf("%s, which is wanted no more, is answered by %s", at(vipN(60)), a.Server)
		}
	})
	r.stop()
	(&bare{r}).holds("after a restart", r.wanted())
	r.start()
}

// startChild runs this test binary again as a process that carries out the errand, and returns what kills it.
func startChild(t *testing.T, root string, e errand) (kill func()) {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.count=1", "-test.run="+only(root))
	cmd.Env = append(os.Environ(), childVar+"="+string(text))
	in, err := cmd.StdinPipe() // its end tells the child to go, should this process be killed
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() { cancel(); _ = cmd.Wait(); _ = in.Close() })
	t.Cleanup(kill)
	var said []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == ready {
			return kill
		}
		said = append(said, lines.Text())
	}
	t.Fatalf("the process to be killed ended before it was ready:\n%s", strings.Join(said, "\n"))
	return nil
}

// only is the -test.run pattern of one test or subtest.
func only(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}
