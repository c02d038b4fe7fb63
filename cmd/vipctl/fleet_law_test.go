package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// randomService returns a random valid service as a table. Services with different values of n
// never conflict.
func randomService(t *testing.T, r *rand.Rand, n int) map[string]any {
	maybe := func() bool { return r.IntN(2) == 0 }
	one := func(values ...any) any { return values[r.IntN(len(values))] }
	duration := func(least int) any { return fmt.Sprintf("%ds", least+r.IntN(5000)) }
	address := func(i int) string {
		if maybe() {
			return fmt.Sprintf("10.%d.%d.%d", i, n/250, 1+n%250)
		}
		return fmt.Sprintf("fd00:%x::%x", i, n+1)
	}
	fields := map[string]any{"vips": []any{address(1)}}
	if maybe() {
		fields["vips"] = append(fields["vips"].([]any), one("auto", "auto:blue", "auto:default"))
	}
	ports := []any{map[string]any{"name": "a", "port": 1 + r.IntN(1000), "protocol": one("tcp", "udp", "sctp")}}
	if maybe() {
		ports = append(ports, map[string]any{"name": "b", "port": 2000, "node_port": 10000 + n})
	}
	var endpoints []any
	for i := range r.IntN(4) {
		e := map[string]any{"address": address(20 + i), "weight": r.IntN(balancer.MaxWeight + 1)}
		for field, value := range map[string]any{
			"port": 1 + r.IntN(65535), "ports": map[string]any{"a": 1 + r.IntN(65535)}, "node": one("n1", "a \"b\"\t\\", "zürich"),
			"zone": "z", "draining": maybe(), "backup": maybe(), "max_connections": r.IntN(9),
		} {
			if maybe() {
				e[field] = value
			}
		}
		endpoints = append(endpoints, e)
	}
	for field, value := range map[string]any{
		"endpoints": endpoints, "scheduler": one("rr", "wrr", "random", "lc", "wlc", "sh", "dh", "mh", "sed", "nq"),
		"affinity": one("none", "client_ip"), "affinity_timeout": duration(1), "source_ranges": []any{"10.0.0.0/8", "fd00::/8"},
		"snat": one("auto", "always", "never"), "locality": one("any", "prefer_zone", "prefer_node", "node_only"),
		"no_endpoints": one("reject", "drop"), "drain_timeout": duration(0), "connect_timeout": duration(1),
		"idle_timeout": duration(0), "slow_start": duration(0), "health": randomHealth(r),
		"max_connection_age": duration(0), "source": "node",
		// Fields of a newer version must also survive the round trip.
		"color": one("red", "", true, 7, 0.5, []any{}, []any{1, "x", []any{}}), "shapes": []any{map[string]any{"round": true, "size": -1e9}, map[string]any{}},
	} {
		if maybe() && value != nil && (field != "endpoints" || endpoints != nil) {
			fields[field] = value
		}
	}
	if maybe() { // these fields need a TCP port, and the last two need each other
		ports[0].(map[string]any)["protocol"] = "tcp"
		fields["proxy_protocol"] = one("none", "v1", "v2")
		fields["accept_proxy_protocol"], fields["trusted"] = true, []any{"10.0.0.0/8", "fd00::/8"}
	}
	if maybe() {
		ports[0].(map[string]any)["label"] = "new \u2028 \x7f"
	}
	fields["ports"] = ports
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	if fields, err = schema.ParseObject(text); err != nil {
		t.Fatal(err)
	}
	return fields
}

func randomHealth(r *rand.Rand) map[string]any {
	h := map[string]any{
		"type": "http", "path": "/a?b=\"c\"", "status": "200-299", "headers": map[string]any{"X-A": "b\t\"c\"", "X-B": ""},
		"interval": "5s", "timeout": "1500ms", "rise": 1 + r.IntN(5), "panic_threshold": r.IntN(101), "port": 1 + r.IntN(65535),
	}
	for _, field := range slices.Collect(maps.Keys(h)) {
		if field != "type" && r.IntN(2) == 0 {
			delete(h, field)
		}
	}
	return h
}

// TestExportThenApplyChangesNothing exports random services as TOML and JSON, and applies the
// result. Nothing may change in etcd.
func TestExportThenApplyChangesNothing(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	f.do(cli.ExitDone, "pool", "set", "default", "10.97.0.0/16")
	f.do(cli.ExitDone, "pool", "set", "blue", "fd00:98::/112")
	r := rand.New(rand.NewPCG(5, 1))
	w := f.writer(t)
	services := wait.Soak(25, 80)
	for n := range services {
		name := balancer.Name(fmt.Sprintf("s%d", n))
		_, err := w.Apply(t.Context(), definitions.Change{Name: name, Fields: randomService(t, r, n), AllowUnknown: true})
		if err != nil {
			t.Fatalf("service %d: error = %v, want none", n, err)
		}
	}
	before := f.etcdRevision(t)
	for _, form := range []string{"toml", "json"} {
		file := filepath.Join(t.TempDir(), "export."+form)
		out := f.do(cli.ExitDone, "export", "-o", form)
		if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		f.do(cli.ExitDone, "diff", "-f", file, "--prune")
		if got := f.do(cli.ExitDone, "apply", "-f", file, "--prune"); strings.Count(got, ": unchanged") != services {
			t.Errorf("apply of %s: output =\n%s\nwant no change", form, got)
		}
		if now := f.etcdRevision(t); now != before {
			t.Fatalf("%s: etcd's revision = %d, want %d", form, now, before)
		}
		again := f.do(cli.ExitDone, "export", "-o", form)
		if again != out {
			t.Errorf("%s: second export (-want +got):\n%s", form, cmp.Diff(out, again))
		}
	}
}

// TestHistoryLaw runs random sequences of applies, deletes and rollbacks. After each step, etcd and
// the history must match a model.
func TestHistoryLaw(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	f.do(cli.ExitDone, "pool", "set", "default", "10.97.0.0/16")
	f.do(cli.ExitDone, "pool", "set", "blue", "10.98.0.0/16")
	for seed := range uint64(wait.Soak(1, 2)) {
		r := rand.New(rand.NewPCG(seed, 2))
		name := fmt.Sprintf("w%d", seed)
		var now map[string]any
		var texts []map[string]any // the expected versions in the history, without their numbers
		file := filepath.Join(t.TempDir(), "s.json")
		for step := range 25 {
			at := fmt.Sprintf("seed %d, step %d", seed, step)
			switch kind := r.IntN(4); {
			case kind == 0 && now != nil:
				if out := f.do(cli.ExitDone, "delete", "service", name, "--dry-run"); !strings.Contains(out, name+": would be removed") {
					t.Errorf("%s: removal with --dry-run: output = %q, want the message for a removal", at, out)
				}
				f.expect(t, at+", rehearsed", name, now, texts)
				f.do(cli.ExitDone, "delete", "service", name)
				now = nil
				texts = append(texts, nil)
			case kind == 1 && len(texts) > 0:
				i := max(0, len(texts)-20) + r.IntN(min(20, len(texts)))
				want, same := cli.ExitDone, equalJSON(t, texts[i], now)
				if texts[i] == nil {
					want, same = cli.ExitFailed, true
				}
				f.do(want, "rollback", name, fmt.Sprint(i+1))
				if !same {
					now = texts[i]
					texts = append(texts, now)
				}
			default:
				now = randomService(t, r, int(seed))
				texts = append(texts, now)
				writeJSON(t, file, map[string]any{"services": map[string]any{name: now}})
				f.do(cli.ExitDone, "apply", "-f", file, "--allow-unknown")
			}
			f.expect(t, at, name, now, texts)
		}
	}
}

// expect compares the verbs' output about a service with the model's state.
func (f *testFleet) expect(t *testing.T, at, name string, now map[string]any, texts []map[string]any) {
	t.Helper()
	var exported struct{ Services map[string]map[string]any }
	if err := json.Unmarshal([]byte(f.do(cli.ExitDone, "export", "-o", "json")), &exported); err != nil {
		t.Fatal(err)
	}
	if !equalJSON(t, exported.Services[name], now) {
		t.Fatalf("%s: service in etcd =\n%v, want\n%v", at, exported.Services[name], now)
	}
	if len(texts) == 0 {
		return
	}
	var history []textChange
	if err := json.Unmarshal([]byte(f.do(cli.ExitDone, "history", name, "-o", "json")), &history); err != nil {
		t.Fatal(err)
	}
	if len(history) != min(20, len(texts)) {
		t.Fatalf("%s: versions in the history = %d, want %d", at, len(history), len(texts))
	}
	for _, e := range history {
		if !equalJSON(t, e.Fields, texts[e.N-1]) || e.By == "" || e.Revision == 0 {
			t.Fatalf("%s: version %d =\n%+v, want\n%v", at, e.N, e, texts[e.N-1])
		}
	}
}

func equalJSON(t *testing.T, a, b any) bool {
	t.Helper()
	text := func(v any) string {
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	return text(a) == text(b)
}

func writeJSON(t *testing.T, file string, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
