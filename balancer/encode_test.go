package balancer_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vipd/balancer"
	"vipd/test/wait"
)

// random generates random valid services.
type random struct{ *rand.Rand }

func (r random) maybe() bool { return r.IntN(2) == 0 }

func (r random) duration(least, most time.Duration) time.Duration {
	d := least + time.Duration(r.Int64N(int64(most-least)))
	if r.maybe() {
		d = max(least, d.Truncate(time.Second))
	}
	return d
}

func (r random) port() uint16 { return uint16(1 + r.IntN(65535)) }

func (r random) addr(n int) netip.Addr {
	if n%2 == 0 {
		return netip.AddrFrom4([4]byte{10, byte(r.IntN(256)), byte(n / 250), byte(n%250 + 1)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 5: byte(r.IntN(256)), 14: byte(n / 250), 15: byte(n%250 + 1)})
}

func mustDecode[E ~string](r random, of E, values interface{ Values() []string }) E {
	all := values.Values()
	return E(all[r.IntN(len(all))])
}

func (r random) service() *balancer.Service {
	s := &balancer.Service{Name: "web"}
	for i := range r.IntN(3) {
		s.VIPs = append(s.VIPs, r.addr(1000+i))
	}
	for range r.IntN(3) {
		s.Pools = append(s.Pools, []string{"", "blue", "green"}[r.IntN(3)])
	}
	if len(s.VIPs)+len(s.Pools) == 0 {
		s.VIPs = append(s.VIPs, r.addr(2000))
	}
	s.Scheduler = mustDecode(r, s.Scheduler, s.Scheduler)
	s.Affinity = mustDecode(r, s.Affinity, s.Affinity)
	s.AffinityTimeout = r.duration(time.Second, 500*time.Hour)
	s.AffinityScope = mustDecode(r, s.AffinityScope, s.AffinityScope)
	if r.maybe() {
		s.AffinityPrefix = []int{1 + r.IntN(32), 1 + r.IntN(128)}
	}
	if r.maybe() {
		s.Limits = &balancer.Limits{
			Connections: r.IntN(2) * 1000, SourceConnections: 1 + r.IntN(65535), SourcePrefix: []int{1 + r.IntN(32), 1 + r.IntN(128)},
			Over: []balancer.OverLimit{"", balancer.DropOver, balancer.RejectOver}[r.IntN(3)],
		}
		if r.maybe() {
			s.Limits.SourceRate = balancer.Rate{N: 1 + r.IntN(1_000_000), Per: []time.Duration{time.Second, time.Minute, time.Hour}[r.IntN(3)]}
		}
	}
	s.SNAT = mustDecode(r, s.SNAT, s.SNAT)
	s.Forward = mustDecode(r, s.Forward, s.Forward)
	s.Locality = mustDecode(r, s.Locality, s.Locality)
	s.NoEndpoints = mustDecode(r, s.NoEndpoints, s.NoEndpoints)
	s.DrainTimeout = r.duration(0, time.Hour)
	s.ConnectTimeout = r.duration(1, time.Hour)
	if r.maybe() {
		d := r.duration(0, time.Hour)
		s.IdleTimeout = &d
		s.AccessLog = &[]string{"", balancer.JournalLog, "/var/log/a.json"}[r.IntN(3)]
	}
	s.SlowStart = r.duration(0, time.Minute)
	s.ProxyProtocol = balancer.NoProxyProtocol
	if s.Forward == balancer.NATForward {
		s.ProxyProtocol = mustDecode(r, s.ProxyProtocol, s.ProxyProtocol)
		s.AcceptProxyProtocol = r.maybe()
	}
	s.Source = mustDecode(r, s.Source, s.Source)
	if s.SNAT == balancer.AlwaysSNAT {
		s.Source = balancer.NodeSource
	}
	for range 1 + r.IntN(3) {
		s.Trusted = append(s.Trusted, netip.PrefixFrom(r.addr(r.IntN(500)), r.IntN(33)).Masked())
	}
	s.MaxConnectionAge = r.duration(0, time.Hour)
	for range r.IntN(4) {
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(r.addr(r.IntN(500)), r.IntN(33)).Masked())
	}
	r.ports(s)
	r.endpoints(s)
	if r.maybe() {
		s.Health = r.health()
		for r.maybe() {
			more := r.health()
			more.Need, more.PanicThreshold, more.OnFailure, more.From = s.Health.Need, s.Health.PanicThreshold, s.Health.OnFailure, s.Health.From
			s.MoreHealth = append(s.MoreHealth, more)
		}
	}
	s.MinUsable = int(s.ConnectTimeout % 3)
	if s.Health != nil {
		for i := range s.Endpoints {
			s.Endpoints[i].HealthPort = uint16(s.DrainTimeout % 3)
			s.Endpoints[i].Health = []balancer.EndpointHealth{"", balancer.NoEndpointHealth}[s.Endpoints[i].Weight%2]
		}
	}
	return s
}

func (r random) ports(s *balancer.Service) {
	n := 1 + r.IntN(3)
	for i := range n {
		p := balancer.Port{Port: balancer.PortRange(1 + i*20000 + r.IntN(20000)), Protocol: balancer.TCP}
		if n > 1 || r.maybe() {
			p.Name = fmt.Sprintf("p%d", i)
		}
		if i > 0 {
			p.Protocol = mustDecode(r, p.Protocol, p.Protocol)
		}
		p.TargetPort = p.Port
		if s.Forward == balancer.NATForward && r.maybe() {
			p.TargetPort = balancer.PortRange(r.port())
		}
		if r.maybe() {
			p.NodePort = p.Port.First()
		}
		s.Ports = append(s.Ports, p)
	}
}

func (r random) endpoints(s *balancer.Service) {
	for i := range r.IntN(5) {
		e := balancer.Endpoint{Address: r.addr(i), Weight: 1, Draining: r.maybe(), Backup: r.maybe(), MaxConnections: r.IntN(3)}
		if r.maybe() {
			e.Weight = r.IntN(balancer.MaxWeight + 1)
		}
		if r.maybe() {
			e.Node, e.Zone = "node \"a\"", "zürich"
		}
		if s.Forward == balancer.NATForward {
			if r.maybe() {
				e.Port = r.port()
			}
			if name := s.Ports[0].Name; name != "" && r.maybe() {
				e.Ports = map[string]uint16{name: r.port()}
			}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
}

func (r random) health() *balancer.Health {
	h := &balancer.Health{Verify: true, Rise: 1 + r.IntN(5), Fall: 1 + r.IntN(5), PanicThreshold: r.IntN(101), From: "node", Need: "all"}
	h.Type = mustDecode(r, h.Type, h.Type)
	h.Interval = r.duration(time.Second, time.Hour)
	h.Timeout = r.duration(time.Millisecond, h.Interval)
	h.FastInterval = r.duration(1, h.Interval)
	if r.maybe() {
		h.FastInterval = h.Interval / 4
	}
	if r.maybe() {
		h.From, h.OnFailure = mustDecode(r, h.From, h.From), mustDecode(r, h.OnFailure, h.OnFailure)
	}
	if r.maybe() {
		h.Port = r.port()
	}
	switch h.Type {
	case balancer.HTTPHealth, balancer.HTTPSHealth:
		h.Path, h.Status, h.Method = "/", "200-399", "GET"
		if r.maybe() {
			h.Path, h.Status, h.Method, h.Host = "/healthz?a=b", "200, 204", "HEAD", "example.com"
			h.Headers = map[string]string{"X-Check": "yes \t\"x\"", "Accept": ""}
		}
	case balancer.TCPHealth:
		h.Steps = []balancer.HealthStep{{SendHex: "00ff", ExpectRegexp: "a|b"}, {Send: "a\x00", Expect: "b"}, {ExpectHex: "61"}}
	case balancer.DNSHealth:
		h.Query, h.Source = "example.com", r.addr(7)
	case balancer.UDPHealth:
		h.Send, h.Expect, h.Mark = "a\x00\n", "b", r.Uint32()
	case balancer.ExecHealth:
		h.Command, h.User = []string{"/bin/true", ""}, "nobody"
	case balancer.GRPCHealth:
		h.Verify, h.CAFile, h.CertFile, h.KeyFile = false, "/ca", "/cert", "/key"
	}
	return h
}

func throughJSON(t testing.TB, tree map[string]any) map[string]any {
	t.Helper()
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatalf("writing %v: %v", tree, err)
	}
	return fromJSON(t, string(text))
}

// checkEncode encodes s as a table, and decodes the table directly and through JSON. Both results
// must equal s.
func checkEncode(t testing.TB, s *balancer.Service) {
	t.Helper()
	tree := balancer.EncodeService(s)
	for _, fields := range []map[string]any{tree, throughJSON(t, tree)} {
		got, problems := balancer.DecodeService(s.Name, fields, nil, nil, "")
		if got == nil {
			t.Fatalf("encoded service %v: problems = %q, want none", fields, lines(problems))
		}
		if !reflect.DeepEqual(got, s) {
			t.Fatalf("%v: wrong service after encoding and decoding (-want +got):\n%s", fields, cmp.Diff(s, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})))
		}
	}
}

// TestEncodeDecode encodes random services. Decoding must return the same service.
func TestEncodeDecode(t *testing.T) {
	for seed := range uint64(wait.Soak(200, 1000)) {
		r := random{rand.New(rand.NewPCG(seed, 2))}
		if s := r.service(); !t.Run(fmt.Sprint(seed), func(t *testing.T) { checkEncode(t, s) }) {
			return
		}
	}
}

// TestEncodeOmitsDefaults encodes services in which some fields have their default values. The
// encoded tables must omit these fields.
func TestEncodeOmitsDefaults(t *testing.T) {
	for _, text := range []string{
		`{"ports":[{"port":80}],"vips":["10.96.0.10"]}`,
		`{"endpoints":[{"address":"10.0.0.1"},{"address":"10.0.0.2","weight":0}],"health":{"type":"https"},"ports":[{"name":"a","port":80,"protocol":"udp"}],"vips":["fd00::1","auto","auto:blue"]}`,
		`{"affinity":"client_ip","affinity_timeout":"1h","drain_timeout":"0s","health":{"interval":"1m30s","type":"tcp"},"idle_timeout":"0s","ports":[{"port":80,"target_port":8080}],"source_ranges":["10.0.0.0/8"],"vips":["10.96.0.10"]}`,
	} {
		s, problems := balancer.DecodeService("web", fromJSON(t, text), nil, nil, "")
		if s == nil {
			t.Fatalf("%s: problems = %q, want none", text, lines(problems))
		}
		got, err := json.Marshal(balancer.EncodeService(s))
		if err != nil || string(got) != text {
			t.Errorf("encoded service = %s, %v\nwant %s", got, err, text)
		}
	}
}

// FuzzDecodeService decodes an arbitrary table. Decoding must not panic. If the service is valid,
// encoding it must return an equivalent table.
func FuzzDecodeService(f *testing.F) {
	f.Fuzz(func(t *testing.T, fields, defaults []byte) {
		var tree, inherited map[string]any
		if unmarshal(fields, &tree) != nil || unmarshal(defaults, &inherited) != nil {
			return
		}
		s, problems := balancer.DecodeService("web", tree, inherited, nil, balancer.SeverityWarning)
		balancer.CheckDefaults(inherited, nil)
		balancer.DecodeEndpoint("web", tree, nil, balancer.SeverityError)
		for _, p := range problems {
			if p.Text == "" || s != nil && p.Severity == balancer.SeverityError {
				t.Fatalf("valid service %[2]v: problem = %+[1]v, want none", p, s)
			}
		}
		if s != nil {
			checkEncode(t, s)
		}
	})
}

// BenchmarkDecodeService decodes 10,000 services with 10 endpoints each.
func BenchmarkDecodeService(b *testing.B) {
	endpoints := make([]map[string]any, 10)
	for i := range endpoints {
		endpoints[i] = map[string]any{"address": fmt.Sprintf("192.168.1.%d", i+1), "weight": int64(i), "node": "a"}
	}
	fields := map[string]any{
		"vips":      []any{"10.96.0.10"},
		"ports":     []map[string]any{{"name": "http", "port": int64(80), "target_port": int64(8080)}},
		"endpoints": endpoints,
		"health":    map[string]any{"type": "http", "path": "/healthz"},
	}
	defaults := map[string]any{"scheduler": "rr", "drain_timeout": "10s"}
	const services = 10_000
	b.ReportAllocs()
	for b.Loop() {
		for range services {
			if s, problems := balancer.DecodeService("web", fields, defaults, nil, ""); s == nil {
				b.Fatal(lines(problems))
			}
		}
	}
}
