package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/test/wait"
)

// wanted is an endpoint's expected state at a port.
type wanted struct {
	weight   int
	draining bool
}

type wantedStates map[balancer.Target]wanted

// last reports whether a change makes a port's last usable endpoint unusable. takesOut reports
// whether the change makes endpoints unusable, and meant selects the changed endpoints.
func (m wantedStates) last(takesOut bool, meant func(balancer.Target) bool) bool {
	type place struct {
		service balancer.Name
		port    uint16
		v4      bool
	}
	taken, left := map[place]bool{}, map[place]bool{}
	for t, s := range m {
		if s.weight > 0 && !s.draining {
			if at := (place{t.Service, t.Port, t.Addr.Is4()}); meant(t) {
				taken[at] = true
			} else {
				left[at] = true
			}
		}
	}
	for at := range taken {
		if takesOut && !left[at] && at.v4 {
			return true // the services have only IPv4 VIPs
		}
	}
	return false
}

// TestOverridesLaw runs random drain, undrain and weight commands for addresses, ports and nodes.
// Each endpoint must have its last override or, if it has none, the values from its definition.
func TestOverridesLaw(t *testing.T) {
	f := newStage(t)
	port := func(name string, port, target int64) map[string]any {
		return map[string]any{"name": name, "port": port, "target_port": target}
	}
	endpoint := func(address, node string, weight int64, draining bool) map[string]any {
		return map[string]any{"address": address, "node": node, "weight": weight, "draining": draining}
	}
	f.service("web", map[string]any{
		"ports":     []any{port("http", 80, 8080), port("https", 443, 8443)},
		"endpoints": []any{endpoint("10.0.0.1", "rack1", 1, false), endpoint("10.0.0.2", "rack2", 3, true), endpoint("fd00::1", "rack1", 2, false)},
	})
	f.service("dns", map[string]any{
		"vips": []any{"10.96.0.53"}, "ports": []any{map[string]any{"port": int64(53), "protocol": "udp"}},
		"endpoints": []any{endpoint("10.0.0.1", "rack1", 4, false)},
	})
	model := wantedStates{}
	nodes := map[balancer.Target]string{}
	define := func(service balancer.Name, address, node string, weight int, draining bool, ports ...uint16) {
		for _, p := range ports {
			target := balancer.Target{Service: service, Addr: netip.MustParseAddr(address), Port: p}
			model[target], nodes[target] = wanted{weight, draining}, node
		}
	}
	define("web", "10.0.0.1", "rack1", 1, false, 8080, 8443)
	define("web", "10.0.0.2", "rack2", 3, true, 8080, 8443)
	define("web", "fd00::1", "rack1", 2, false, 8080, 8443)
	define("dns", "10.0.0.1", "rack1", 4, false, 53)
	defined := maps.Clone(model)
	targets := make([]balancer.Target, 0, len(model))
	for target := range model {
		targets = append(targets, target)
	}
	slices.SortFunc(targets, balancer.Target.Compare)

	r := rand.New(rand.NewPCG(1, 2))
	for step := range wait.Soak(30, 80) {
		some := targets[r.IntN(len(targets))]
		var which []string
		single := false
		var meant func(balancer.Target) bool
		switch r.IntN(3) {
		case 0:
			which, meant = []string{"--node", nodes[some]}, func(t balancer.Target) bool { return nodes[t] == nodes[some] }
		case 1:
			wide := some
			wide.Port = 0
			which = []string{string(wide.Service), wide.Address()}
			meant = func(t balancer.Target) bool { return t.Service == some.Service && t.Addr == some.Addr }
		default:
			single = true
			which, meant = []string{string(some.Service), some.Address()}, func(t balancer.Target) bool { return t == some }
		}
		what := []string{"drain", "undrain", "weight"}[r.IntN(3)]
		weight := r.IntN(5)
		words := append([]string{what}, which...)
		back := what == "weight" && weight == 0 && !single
		if back {
			words = append(words, "-")
		} else if what == "weight" {
			words = append(words, fmt.Sprint(weight))
		}
		last := model.last(what == "drain" || what == "weight" && weight == 0 && !back, meant)
		if force := r.IntN(3) > 0; last && !force {
			_, stderr := f.do(cli.ExitFailed, words...)
			if !strings.Contains(stderr, "no usable endpoint would remain for service ") {
				t.Errorf("%q: stderr = %q, want a refusal", words, stderr)
			}
			continue
		} else if last && force {
			words = append(words, "--force")
		}
		f.do(cli.ExitDone, words...)
		s := f.read()
		in := balancer.Inputs{Services: s.Services, Overrides: s.Overrides}
		for target, old := range model {
			if meant(target) {
				switch what {
				case "weight":
					if old.weight = weight; back {
						old.weight = defined[target].weight
					}
				default:
					old.draining = what == "drain"
				}
				model[target] = old
			}
			var got wanted
			for _, e := range s.Services.At(target.Service).Endpoints {
				if e.Address == target.Addr {
					got = wanted{e.Weight, e.Draining}
				}
			}
			if o := balancer.OverrideOf(&in, target); o != nil {
				if o.Weight != nil {
					got.weight = *o.Weight
				}
				if o.Draining != nil {
					got.draining = *o.Draining
				}
			}
			if got != old {
				t.Fatalf("step %d, after %q: %s: override = %+v, want %+v", step, words, target, got, old)
			}
		}
	}
}

func TestFleetDrainWait(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "10.0.0.1", "10.0.0.2")
	one, two := f.start("gw1", atRevision(1)), f.start("gw2", atRevision(1))
	f.waitForStatuses(2)
	l := f.begin("drain", "web", "10.0.0.1", "--wait", "--reason", "disk", "--timeout", "10m")
	l.waitForStderr("vipctl: waiting: gw1 is at revision 1, gw2 is at revision 1\n")
	revision := f.revisionOf("/vipd/overrides/web/10.0.0.1")
	want := fmt.Sprintf("web/10.0.0.1: draining; remaining connections are cut in 10m0s\nrevision %d; \"vipctl wait --revision %[1]d\" returns when the change is in effect on all hosts\n", revision)
	if got := l.out.String(); got != want {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	o := f.read().Overrides.At(balancer.Target{Service: "web", Addr: netip.MustParseAddr("10.0.0.1")})
	if o == nil || o.Draining == nil || !*o.Draining || o.By != "ana" || o.Reason != "disk" || time.Until(o.Until).Round(time.Minute) != 10*time.Minute {
		t.Errorf("override = %+v, want a drain by ana", o)
	}
	one.setStatus(draining(revision, "web", "10.0.0.1", 0))
	two.setStatus(draining(revision, "web", "10.0.0.1:8080", 2))
	f.waitForPoll()
	two.setStatus(draining(revision-1, "web", "10.0.0.1", 0))
	f.waitForPoll()
	select {
	case <-l.ended:
		t.Fatalf("drain ended early: stdout = %s, want it to wait", l.out)
	default:
	}
	two.setStatus(draining(revision, "web", "10.0.0.2", 5)) // connections of another endpoint do not matter
	l.waitForExit(cli.ExitDone)
	if want += "drained: 1 endpoint, no connections left on 2 nodes\n"; l.out.String() != want {
		t.Errorf("stdout = %q, want %q", l.out, want)
	}
}

// TestFleetDrainInterrupted interrupts the wait for a drain. The message must name the awaited
// nodes.
func TestFleetDrainInterrupted(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "10.0.0.1")
	f.service("dns", nil, "10.0.0.1")
	f.start("gw1", draining(1<<40, "web", "10.0.0.1", 5))
	f.start("gw2", draining(1<<40, "web", "10.0.0.1:8080", 2))
	f.waitForStatuses(2)
	l := f.begin("drain", "web", "10.0.0.1", "--wait", "--force")
	l.waitForStderr("waiting: gw1 has 5 connections, gw2 has 2 connections")
	l.stop()
	l.waitForExit(cli.ExitInterrupted)
	want := "vipctl: interrupted with 7 connections left (gw1 has 5 connections, gw2 has 2 connections); " +
		"the drain stays in place, \"vipctl undrain web 10.0.0.1\" removes it\n"
	if !strings.HasSuffix(l.err.String(), want) {
		t.Errorf("stderr = %q, want %q at the end", l.err, want)
	}
}

// TestFleetDrainThroughAnOutage stops etcd during the wait for a drain. After the outage, the wait
// must continue until the node has no connections.
func TestFleetDrainThroughAnOutage(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "10.0.0.1")
	one := f.start("gw1", draining(1<<40, "web", "10.0.0.1", 5))
	f.waitForStatuses(1)
	l := f.begin("drain", "web", "10.0.0.1", "--wait", "--force")
	l.waitForStderr("waiting: gw1 has 5 connections")
	f.Members[0].Kill()
	l.waitForStderr("; trying again\n")
	one.setStatus(draining(1<<40, "web", "10.0.0.1", 0))
	f.Members[0].Start()
	l.waitForExit(cli.ExitDone)
}

// TestFleetOverrideExpiry changes an endpoint after its override has expired. The expired override
// is still in etcd, but must not take effect again.
func TestFleetOverrideExpiry(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "10.0.0.1")
	target := balancer.Target{Service: "web", Addr: netip.MustParseAddr("10.0.0.1")}
	stdout, _ := f.do(cli.ExitDone, "drain", "web", "10.0.0.1", "--expires", "1h", "--force")
	if !strings.HasPrefix(stdout, "web/10.0.0.1: draining; expires in 1h0m0s\n") {
		t.Errorf("stdout = %q, want a drain for 1h", stdout)
	}
	o := f.read().Overrides.At(target)
	if o == nil || time.Until(o.Expires).Round(time.Minute) != time.Hour {
		t.Errorf("override = %+v, want a drain that expires in 1h", o)
	}
	if stdout, _ := f.do(cli.ExitDone, "weight", "web", "10.0.0.1", "3", "--expires", "1h"); !strings.HasPrefix(stdout, "web/10.0.0.1: weight 3; expires in 1h0m0s\n") {
		t.Errorf("stdout = %q, want a weight for 1h", stdout)
	}
	l := f.line()
	l.ahead.Store(int64(2 * time.Hour))
	l.begin("weight", "web", "10.0.0.1", "5")
	l.waitForExit(cli.ExitDone)
	if o := f.read().Overrides.At(target); o == nil || o.Draining != nil || o.Weight == nil || *o.Weight != 5 || !o.Expires.IsZero() {
		t.Errorf("override = %+v, want only weight 5", o)
	}
}

// TestOverridePlace changes overrides with several configurations and flags. Each command must
// change either etcd or the daemon, but not both.
func TestOverridePlace(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "192.168.1.11", "192.168.1.12") // the daemon also has a service "web"
	d, socket := fakeHere(t)
	config := func(kind string) string {
		file := filepath.Join(t.TempDir(), "vipd.toml")
		text := fmt.Sprintf("[store]\nkind = %q\n[etcd]\nendpoints = [%q]\n[api]\nsocket = %q\n", kind, f.config.Endpoints[0], socket)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, test := range []struct {
		line string
		etcd bool
	}{
		{"--config " + config("file") + " drain web 192.168.1.11", false},
		{"--config " + config("etcd") + " drain web 192.168.1.11", true},
		{"--config " + config("etcd") + " drain dns 192.168.1.21", false}, // only the daemon has this service
		{"--config " + config("etcd") + " --socket " + socket + " drain web 192.168.1.11", false},
		{"--config " + config("file") + " --etcd " + f.config.Endpoints[0] + " weight web 192.168.1.12 7", true},
		{"--config " + config("etcd") + " weight web 192.168.1.11 7", true},
		{"--config " + config("file") + " weight web 192.168.1.11 7", false},
		{"--config " + config("etcd") + " undrain web 192.168.1.11", true},
		{"--config " + config("file") + " undrain web 192.168.1.11", false},
	} {
		asked, before := len(d.overrideRequests), f.read().Revision
		l := f.line()
		if code := run(t.Context(), l.world, strings.Fields(test.line)); code != cli.ExitDone {
			t.Errorf("%q: exit code = %d, want 0: %s", test.line, code, l.err)
		}
		if daemon, etcd := len(d.overrideRequests) > asked, f.read().Revision > before; daemon == test.etcd || etcd != test.etcd {
			t.Errorf("%q: daemon changed = %v, etcd changed = %v; want etcd changed = %v, and exactly one of the two changed", test.line, daemon, etcd, test.etcd)
		}
	}
}

// fakeHere starts a fake daemon for this host, and returns its socket.
func fakeHere(t *testing.T) (d *fakeDaemon, socket string) {
	socket = filepath.Join(t.TempDir(), "d.sock")
	d, stop, err := serveFake(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return d, socket
}

// TestFleetUndrainHere undrains an endpoint in etcd that only this host's daemon drains. A note
// must contain the command that undrains the endpoint in the daemon. If etcd is unreachable, the
// error must name --socket.
func TestFleetUndrainHere(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "192.168.1.11")
	d, socket := fakeHere(t)
	t.Setenv("VIPCTL_SOCKET", socket)
	etcd := "--etcd " + f.config.Endpoints[0]
	note := "note: this host's daemon drains web/192.168.1.11 independently of etcd: \"vipctl undrain web 192.168.1.11 --socket " + socket + "\" ends that drain\n"
	for _, test := range []struct {
		line, want string
		code       int
	}{
		{"--socket " + socket + " drain web 192.168.1.11", "", cli.ExitDone},
		{etcd + " undrain web 192.168.1.11", note, cli.ExitDone},
		{"--socket " + socket + " undrain web 192.168.1.11", "", cli.ExitDone},
		{etcd + " undrain web 192.168.1.11", "", cli.ExitDone},
		{"--etcd http://127.0.0.1:1 drain web 192.168.1.11", "while etcd is unreachable, \"vipctl drain\" with --socket PATH instead of --etcd makes the change only in this host's daemon", cli.ExitFailed},
	} {
		l := f.line()
		if code := run(t.Context(), l.world, strings.Fields(test.line)); code != test.code {
			t.Errorf("%q: exit code = %d, want the expected code; stderr = %s", test.line, code, l.err)
		}
		if got := l.err.String(); !strings.Contains(got, test.want) || strings.Contains(got, note) != (test.want == note) {
			t.Errorf("%q: output = %q, want %q", test.line, got, test.want)
		}
	}
	if len(d.overrideRequests) != 2 {
		t.Errorf("requests for overrides = %d, want 2", len(d.overrideRequests))
	}
}

// TestSocketAndEtcdPrecedence sets a socket and an etcd address in the environment. The etcd
// address must override that socket, but not a socket on the command line.
func TestSocketAndEtcdPrecedence(t *testing.T) {
	s := newSession(t)
	socket := os.Getenv("VIPCTL_SOCKET")
	t.Setenv("VIPCTL_ETCD", "http://127.0.0.1:1")
	for _, verb := range []string{"get services", "describe service web", "weight web 192.168.1.11 3"} {
		if code := s.run(t.Context(), strings.Fields(verb)...); code != cli.ExitFailed {
			t.Errorf("%s with both in the environment: exit code = %d, want failure: %s", verb, code, s.out)
		}
		t.Setenv("VIPCTL_SOCKET", "")
		if code := s.run(t.Context(), append(strings.Fields(verb), "--socket", socket)...); code != cli.ExitDone {
			t.Errorf("%s: exit code = %d, want 0: %s", verb, code, s.err)
		}
		t.Setenv("VIPCTL_SOCKET", socket)
	}
}

// TestFleetDrainKept drains a node with endpoints whose leases have expired. These endpoints must
// also be drained, because nodes keep using them.
func TestFleetDrainKept(t *testing.T) {
	f := newStage(t)
	f.service("web", map[string]any{"ports": []any{
		map[string]any{"name": "http", "port": int64(80), "target_port": int64(8080)}, map[string]any{"name": "https", "port": int64(443), "target_port": int64(8443)},
	}})
	d, socket := fakeHere(t)
	t.Setenv("VIPCTL_SOCKET", socket)
	kept := func(address, port string, weight int) api.Endpoint {
		return api.Endpoint{Service: "web", Address: address, Port: port, Node: "rack1", Configured: weight}
	}
	d.services = []api.Service{
		{Name: "web", Origin: balancer.Origin{Key: "/vipd/services/web"}, Endpoints: []api.Endpoint{
			kept("10.0.0.1:8080", "http", 1), kept("10.0.0.1:8443", "https", 1), kept("10.0.0.2:9000", "http", 1), // the last endpoint uses another port
			kept("10.0.0.4:8080", "http", 0), // this endpoint was removed and only drains
		}},
		{Name: "dns", Origin: balancer.Origin{File: "vipd.toml"}, Endpoints: []api.Endpoint{{Service: "dns", Address: "10.0.0.5:8080", Node: "rack1", Configured: 1}}},
	}
	l := f.line()
	if code := run(t.Context(), l.world, strings.Fields("--etcd "+f.config.Endpoints[0]+" drain --node rack1 --force")); code != cli.ExitDone ||
		!strings.Contains(l.err.String(), "endpoints of services in this host's files were not changed: dns/10.0.0.5:8080; to change them, use --socket ") {
		t.Errorf("drain of a node with a service from files: exit code = %d, stderr = %q; want 0 and a note about the service", code, l.err)
	}
	for _, test := range []struct{ line, want string }{
		{"drain --node rack1 --force", "web/10.0.0.1: draining\nweb/10.0.0.2:9000: draining\n"},
		{"undrain web 10.0.0.2", "web/10.0.0.2: drain removed\n"},
		{"weight web/10.0.0.1:8443 2", "web/10.0.0.1:8443: weight 2\n"},
	} {
		l := f.line()
		if code := run(t.Context(), l.world, strings.Fields("--etcd "+f.config.Endpoints[0]+" "+test.line)); code != cli.ExitDone || !strings.HasPrefix(l.out.String(), test.want+"revision ") {
			t.Errorf("%q: exit code = %d, output %q, %q; want %q", test.line, code, l.out, l.err, test.want)
		}
	}
	if len(d.overrideRequests) > 0 {
		t.Errorf("requests to the daemon = %+v, want none", d.overrideRequests)
	}
}

// TestFleetDrainOfTheLastHealthy drains an endpoint while the other endpoint is down. The drain
// must be refused, like the drain of a service's only endpoint.
func TestFleetDrainOfTheLastHealthy(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "10.0.0.1", "10.0.0.2")
	d, socket := fakeHere(t)
	t.Setenv("VIPCTL_SOCKET", socket)
	for state, code := range map[balancer.BackendState]int{balancer.Down: cli.ExitFailed, balancer.Active: cli.ExitDone} {
		d.services = []api.Service{{Name: "web", Origin: balancer.Origin{Key: "/vipd/services/web"}, Endpoints: []api.Endpoint{
			{Service: "web", Address: "10.0.0.1:8080", Configured: 1, State: balancer.Active}, {Service: "web", Address: "10.0.0.2:8080", Configured: 1, State: state},
		}}}
		for _, line := range []string{"drain web 10.0.0.1", "weight web 10.0.0.1 0", "undrain web 10.0.0.1", "weight web 10.0.0.1 -"} {
			want := code
			if strings.HasPrefix(line, "undrain") || strings.HasSuffix(line, "-") {
				want = cli.ExitDone
			}
			l := f.line()
			if got := run(t.Context(), l.world, strings.Fields("--etcd "+f.config.Endpoints[0]+" "+line)); got != want {
				t.Errorf("%q, other endpoint %s: exit code = %d, want a refusal only for the last healthy endpoint: %s", line, state, got, l.err)
			}
		}
	}
}

func TestFleetOverrideJSON(t *testing.T) {
	f := newStage(t)
	f.service("web", nil, "10.0.0.1")
	stdout, _ := f.do(cli.ExitDone, "weight", "web", "10.0.0.1:8080", "5", "-o", "json")
	var got fleetResult
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Targets) != 1 || got.Targets[0].Address != "10.0.0.1:8080" || *got.Targets[0].Override.Weight != 5 ||
		got.Revision != f.revisionOf("/vipd/overrides/web/10.0.0.1:8080") {
		t.Errorf("JSON = %s, want the targets and their overrides", stdout)
	}
}

// TestFleetOverrideRights drains two endpoints as a user who may write only one. The writable
// endpoint must be drained, and an error must report that the other endpoint is not drained.
func TestFleetOverrideRights(t *testing.T) {
	f := newStage(t)
	f.service("web", map[string]any{"endpoints": []any{map[string]any{"address": "10.0.0.1", "node": "rack1"}}})
	f.service("dns", map[string]any{"vips": []any{"10.96.0.53"}, "endpoints": []any{map[string]any{"address": "10.0.0.1", "node": "rack1"}}})
	f.limit("ops", []string{"/vipd/"}, []string{"/vipd/overrides/web/"})
	stdout, stderr := f.do(cli.ExitFailed, "drain", "--node", "rack1", "--force")
	if !strings.HasPrefix(stdout, "web/10.0.0.1: draining\n") || !strings.Contains(stderr, "dns/10.0.0.1: the user ops may not do that") {
		t.Errorf("stdout = %q, stderr = %q; want the endpoint of \"web\" drained, and an error about \"dns\"", stdout, stderr)
	}
}

// TestFleetDrainOfNames drains nodes and services on a host without a daemon, so DNS names'
// addresses are unknown. A note must list the names that are left out.
func TestFleetDrainOfNames(t *testing.T) {
	f := newStage(t)
	endpoint := func(address, node string) map[string]any { return map[string]any{"address": address, "node": node} }
	f.service("web", map[string]any{"endpoints": []any{endpoint("10.0.0.1", "rack1"), endpoint("10.0.0.2", "rack2"), endpoint("a.web.invalid", "rack1"), endpoint("b.web.invalid", "rack2")}})
	f.service("pg", map[string]any{"vips": []any{"10.96.0.11"}, "endpoints": []any{endpoint("pg.invalid", "rack1")}, "discover": map[string]any{"dns": "_pg._tcp.invalid"}})
	note := func(names string) string {
		return "note: the endpoints at " + names + ` are not changed, because no vipd on this host knows their addresses: run "vipctl drain" on a host whose vipd serves them` + "\n"
	}
	for _, test := range []struct {
		words []string
		exit  int
		want  string // the expected note, or "" for none
	}{
		{[]string{"drain", "--node", "rack1"}, cli.ExitDone, note("pg/pg.invalid, web/a.web.invalid")},
		{[]string{"drain", "--node", "rack3"}, cli.ExitFailed, ""},
		{[]string{"drain", "web", "10.0.0.1"}, cli.ExitDone, ""},
		{[]string{"drain", "web", "10.0.0.2"}, cli.ExitFailed, note("web/a.web.invalid, web/b.web.invalid")}, // the last known usable endpoint
		{[]string{"drain", "pg", "10.0.0.9"}, cli.ExitFailed, note("pg/_pg._tcp.invalid, pg/pg.invalid")},
	} {
		_, stderr := f.do(test.exit, test.words...)
		if test.want == "" && strings.Contains(stderr, "are not changed") || !strings.Contains(stderr, test.want) {
			t.Errorf("%q: stderr = %q, want %q", test.words, stderr, test.want)
		}
	}
}

// TestFleetUndrainOfFormerAddress drains the address of a DNS name, which then resolves to a
// different address. Undraining the name must print the drained address.
func TestFleetUndrainOfFormerAddress(t *testing.T) {
	f := newStage(t)
	f.service("web", map[string]any{"endpoints": []any{map[string]any{"address": "10.0.0.1"}, map[string]any{"address": "a.web.invalid"}}})
	d, socket := fakeHere(t)
	t.Setenv("VIPCTL_SOCKET", socket)
	const note = `note: service web still drains addresses that are not endpoints now: 10.0.0.2:8080; to end such a drain, run for example "vipctl undrain web 10.0.0.2:8080"` + "\n"
	for _, step := range []struct{ address, line, want string }{
		{"10.0.0.2", "drain web 10.0.0.2:8080", ""},
		{"10.0.0.3", "undrain web 10.0.0.1", ""},
		{"10.0.0.3", "undrain web a.web.invalid", note},
		{"10.0.0.3", "undrain web 10.0.0.2:8080", ""},
		{"10.0.0.3", "undrain web a.web.invalid", ""},
	} {
		d.services = []api.Service{{
			Name: "web", Origin: balancer.Origin{Key: "/vipd/services/web"}, Lookups: []api.Lookup{{Name: "a.web.invalid", Endpoints: 1}},
			Endpoints: []api.Endpoint{{Service: "web", Address: step.address + ":8080", Name: "a.web.invalid", Configured: 1, State: balancer.Active}},
		}}
		l := f.line()
		code := run(t.Context(), l.world, strings.Fields("--etcd "+f.config.Endpoints[0]+" "+step.line))
		if got := l.err.String(); code != cli.ExitDone || strings.Contains(got, "still drains") != (step.want != "") || !strings.Contains(got, step.want) {
			t.Errorf("%q: exit code = %d, stderr = %q, want %q", step.line, code, got, step.want)
		}
	}
}
