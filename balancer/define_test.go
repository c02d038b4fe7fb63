package balancer_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vipd/balancer"
)

// fromJSON decodes the JSON text of a table, as vipd does for definitions in etcd.
func fromJSON(t testing.TB, text string) map[string]any {
	t.Helper()
	if text == "" {
		return nil
	}
	var tree map[string]any
	if err := unmarshal([]byte(text), &tree); err != nil {
		t.Fatalf("reading %s: %v", text, err)
	}
	return tree
}

func unmarshal(text []byte, tree *map[string]any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(tree)
}

func lines(problems []balancer.Problem) []string {
	var out []string
	for _, p := range problems {
		line := p.String()
		if p.Severity != balancer.SeverityError {
			line = string(p.Severity) + ": " + line
		}
		out = append(out, line)
	}
	return out
}

const (
	vip   = `"vips": ["10.96.0.10"]`
	web   = `"vips": ["10.96.0.10"], "ports": [{"port": 80}]`
	two   = `"vips": ["10.96.0.10"], "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]`
	check = web + `, "health": `
)

type wrong struct {
	name     string // "" means web
	fields   string // the definition, without the outer braces
	defaults string
	want     []string
}

func checkWrong(t *testing.T, cases []wrong) {
	t.Helper()
	for _, c := range cases {
		name := c.name
		if name == "" {
			name = "web"
		}
		s, problems := balancer.DecodeService(balancer.Name(name), fromJSON(t, "{"+c.fields+"}"), fromJSON(t, c.defaults), nil, balancer.SeverityError)
		got := lines(problems)
		want := make([]string, len(c.want))
		bad := false
		for i, w := range c.want {
			severity := ""
			if rest, ok := strings.CutPrefix(w, "warning: "); ok {
				severity, w = "warning: ", rest
			} else {
				bad = true
			}
			want[i] = severity + "service " + name + ": " + w
		}
		if !slices.Equal(got, want) {
			t.Errorf("{%s} with defaults %s (-want +got):\n%s", c.fields, c.defaults, cmp.Diff(want, got))
		}
		if (s == nil) != bad {
			t.Errorf("{%s}: service = %v, problems = %q, want a valid service = %t", c.fields, s, got, !bad)
		}
	}
}

// TestDefaults decodes a minimal service, and a service with checks. All default values must be
// set.
func TestDefaults(t *testing.T) {
	origin := balancer.Origin{File: "a.toml", Line: 1}
	where := func(string) balancer.Origin { return origin }
	want := balancer.Service{
		Name: "web", Origin: origin,
		VIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::1")},
		Pools:     []string{"", "blue"},
		Ports:     []balancer.Port{{Port: 80, Protocol: "tcp", TargetPort: 80}},
		Endpoints: []balancer.Endpoint{{Address: netip.MustParseAddr("10.0.0.1"), Weight: 1}},
		Policy:    balancer.Policy{Scheduler: "wrr", SNAT: "auto", Forward: "nat", NoEndpoints: "reject", DrainTimeout: 30 * time.Second, ConnectTimeout: time.Second, ProxyProtocol: "none", Source: "node"}, Affinity: "none", AffinityTimeout: 3 * time.Hour, AffinityScope: "port", Locality: "any",
	}
	const fields = `"vips": ["auto", "10.96.0.10", "auto:blue", "fd00::1"], "ports": [{"port": 80}], "endpoints": [{"address": "10.0.0.1"}]`
	got, problems := balancer.DecodeService("web", fromJSON(t, "{"+fields+"}"), nil, where, "")
	if len(problems) > 0 {
		t.Fatalf("problems = %q, want none", problems)
	}
	if diff := cmp.Diff(&want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	checks := balancer.Health{
		Type: "http", Path: "/", Status: "200-399", Method: "GET", Verify: true, Interval: 2 * time.Second,
		FastInterval: 500 * time.Millisecond, Timeout: time.Second, Rise: 2, Fall: 3, From: "node", Need: "all",
	}
	got, problems = balancer.DecodeService("web", fromJSON(t, "{"+fields+`, "health": {"type": "http"}}`), nil, where, "")
	if len(problems) > 0 {
		t.Fatalf("problems = %q, want none", problems)
	}
	if diff := cmp.Diff(&checks, got.Health, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	got, problems = balancer.DecodeService("web", fromJSON(t, "{"+fields+`, "health": {"type": "tcp", "interval": "1s"}}`), nil, where, "")
	if len(problems) > 0 || got.Health.Timeout != 500*time.Millisecond {
		t.Errorf("interval 1 s: default timeout = %s, problems = %q; want 500ms and no problems", got.Health.Timeout, problems)
	}
}

// TestValidServices decodes valid definitions. None may have a problem.
func TestValidServices(t *testing.T) {
	checkWrong(t, []wrong{
		{fields: web},
		{fields: `"vips": ["10.96.0.10", "fd00:96::10"], "ports": [{"name": "http", "port": 80, "target_port": 8080}],
			"endpoints": [{"address": "192.168.1.11", "weight": 2}, {"address": "192.168.1.12"}],
			"health": {"type": "http", "path": "/healthz", "interval": "2s"}`},
		{fields: `"vips": ["127.0.0.1"], "ports": [{"port": 8080}], "endpoints": [{"address": "127.0.0.1", "port": 8081}, {"address": "127.0.0.1", "port": 8082}]`},
		{fields: two + `, "endpoints": [{"address": "10.0.0.1", "ports": {"http": 8080}, "weight": 0, "node": "a"}], "locality": "prefer_node"`},
		{fields: web + `, "forward": "dr", "endpoints": [{"address": "10.0.0.1", "port": 80}]`},
		{fields: web + `, "drain_timeout": "0s", "idle_timeout": "0", "slow_start": "1m", "affinity": "client_ip", "affinity_timeout": "576h"`},
	})
}

// TestInheritedDefaults decodes services with a [defaults] table. A default must apply unless the
// service sets the field. A field that the service sets to null must not inherit the default.
func TestInheritedDefaults(t *testing.T) {
	defaults := fromJSON(t, `{"scheduler": "lc", "source_ranges": ["10.0.0.0/8"], "idle_timeout": "5m", "health": {"type": "tcp", "rise": 5}}`)
	s, problems := balancer.DecodeService("web", fromJSON(t, "{"+web+`, "idle_timeout": "0s", "source_ranges": null, "health": {"type": "http"}}`), defaults, nil, "")
	if len(problems) > 0 {
		t.Fatalf("problems = %q, want none", problems)
	}
	if s.Scheduler != "lc" || s.IdleTimeout == nil || *s.IdleTimeout != 0 || s.SourceRanges != nil || s.Health.Type != "http" || s.Health.Rise != 2 {
		t.Errorf("scheduler = %s, want lc; idle timeout = %v, want 0; source ranges = %v, want none; health = %+v, want http with rise 2", s.Scheduler, s.IdleTimeout, s.SourceRanges, s.Health)
	}
}

func TestCheckDefaults(t *testing.T) {
	where := func(path string) balancer.Origin { return balancer.Origin{File: "vipd.toml", Line: len(path)} }
	problems := balancer.CheckDefaults(fromJSON(t, `{"vips": 1, "ports": [{}], "endpoints": [], "sheduler": "rr", "snat": "no",
		"affinity_timeout": "1ms", "access_log": "", "health": {"type": "dns"}}`), where)
	want := []string{
		`vipd.toml:4: vips: each service has its own vips, so [defaults] can't set it`,
		`vipd.toml:4: snat: "no" is not one of auto, always, never`,
		`vipd.toml:5: ports: each service has its own ports, so [defaults] can't set it`,
		`vipd.toml:8: sheduler: unknown field; did you mean "scheduler"?`,
		`vipd.toml:9: endpoints: each service has its own endpoints, so [defaults] can't set it`,
		`vipd.toml:10: access_log: write the services' default as access_log in [userspace]`,
		`vipd.toml:12: health.query: needs a name to resolve, such as example.com`,
		`vipd.toml:16: affinity_timeout: 1ms is out of range; use 1s to 576h`,
	}
	if got := lines(problems); !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	if problems := balancer.CheckDefaults(fromJSON(t, `{"proxy_protocol": "v2", "affinity_timeout": "1h"}`), nil); len(problems) > 0 {
		t.Errorf("problems in the defaults = %q, want none", lines(problems))
	}
}

// TestUnknownFields decodes definitions with fields that only a newer version knows. In etcd, such
// fields must only cause warnings.
func TestUnknownFields(t *testing.T) {
	where := func(string) balancer.Origin { return balancer.Origin{Key: "/vipd/services/web", Revision: 7} }
	s, problems := balancer.DecodeService("web", fromJSON(t, "{"+web+`, "quic": true, "endpoints": [{"address": "10.0.0.1", "rack": 4}]}`), nil, where, balancer.SeverityWarning)
	want := []string{
		`warning: /vipd/services/web: service web: endpoints[0].rack: unknown field`,
		`warning: /vipd/services/web: service web: quic: unknown field`,
	}
	if got := lines(problems); !slices.Equal(got, want) || s == nil || len(s.Endpoints) != 1 {
		t.Errorf("service = %v, want one endpoint; problems (-want +got):\n%s", s, cmp.Diff(want, got))
	}
}

func TestDecodeEndpoint(t *testing.T) {
	where := func(string) balancer.Origin { return balancer.Origin{Key: "/vipd/endpoints/web/a"} }
	e, problems := balancer.DecodeEndpoint("web", fromJSON(t, `{"address": "::ffff:10.0.0.1", "ports": {"http": 81}, "zone": "b"}`), where, balancer.SeverityWarning)
	want := &balancer.Endpoint{Address: netip.MustParseAddr("10.0.0.1"), Ports: map[string]uint16{"http": 81}, Weight: 1, Zone: "b"}
	if len(problems) > 0 || !reflect.DeepEqual(e, want) {
		t.Errorf("decoded endpoint = %+v, problems = %q; want %+v", e, lines(problems), want)
	}
	if back, problems := balancer.DecodeEndpoint("web", balancer.EncodeEndpoint(e), nil, ""); !reflect.DeepEqual(back, e) {
		t.Errorf("after encoding and decoding: endpoint = %+v, problems = %q; want %+v", back, lines(problems), e)
	}
	e, problems = balancer.DecodeEndpoint("web", fromJSON(t, `{"weight": 70000, "adress": "10.0.0.1"}`), where, balancer.SeverityWarning)
	lost := []string{
		`warning: /vipd/endpoints/web/a: service web: adress: unknown field; did you mean "address"?`,
		`/vipd/endpoints/web/a: service web: address: needs an address, such as 192.168.1.11`,
		`/vipd/endpoints/web/a: service web: weight: 70000 is out of range; use 0 (no new connections) to 65535`,
	}
	if got := lines(problems); e != nil || !slices.Equal(got, lost) {
		t.Errorf("endpoint = %+v, want nil; problems (-want +got):\n%s", e, cmp.Diff(lost, got))
	}
}
