package balancer_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
)

// byName defines a service with a host name in its endpoints. %s stands for additional fields.
const byName = `{"vips": ["10.96.0.10"], "ports": [{"port": 5432}], "endpoints": [{"address": "DB1.example.org", "weight": 2}, {"address": "192.0.2.1"}]%s}`

// decodeByName decodes byName with additional fields. If key is not empty, the service is from
// etcd, otherwise from a file.
func decodeByName(t *testing.T, fields, key string) *balancer.Service {
	t.Helper()
	var tree map[string]any
	decoder := json.NewDecoder(strings.NewReader(strings.Replace(byName, "%s", fields, 1)))
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	s, problems := balancer.DecodeService("db", tree, nil, func(string) balancer.Origin { return balancer.Origin{Key: key} }, balancer.SeverityError)
	if s == nil {
		t.Fatal(problems)
	}
	return s
}

// TestNamesAreWrittenBack encodes a service with host names, and decodes the result. The decoded
// service must equal the original service.
func TestNamesAreWrittenBack(t *testing.T) {
	s := decodeByName(t, `, "discover": {"dns": "_pg._tcp.example.org", "interval": "5s", "max": 7}`, "")
	text, err := json.Marshal(balancer.EncodeService(s))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"discover":{"dns":"_pg._tcp.example.org","interval":"5s","max":7},"endpoints":[{"address":"db1.example.org","weight":2},{"address":"192.0.2.1"}],"ports":[{"port":5432}],"vips":["10.96.0.10"]}`
	if string(text) != want {
		t.Errorf("EncodeService = %s\nwant %s", text, want)
	}
	var tree map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	if again, problems := balancer.DecodeService("db", tree, nil, nil, balancer.SeverityError); !reflect.DeepEqual(again, s) {
		t.Errorf("after encoding and decoding: service = %+v, want %+v; problems = %v", again, s, problems)
	}
}

// TestLookupsOf calls LookupsOf for services from files and from etcd. For a service from etcd, the
// lookups must not include a program.
func TestLookupsOf(t *testing.T) {
	host := balancer.Lookup{Kind: balancer.HostLookup, Name: "db1.example.org", V4: true}
	program := balancer.Lookup{Kind: balancer.ProgramLookup, Name: "/etc/members\x00db"}
	const exec = `, "discover": {"exec": ["/etc/members", "db"]}`
	for name, c := range map[string]struct {
		fields, key string
		want        map[balancer.Lookup]time.Duration
	}{
		"a name":            {want: map[balancer.Lookup]time.Duration{host: 0}},
		"a name in etcd":    {key: "/vipd/services/db", want: map[balancer.Lookup]time.Duration{host: 0}},
		"a program":         {fields: exec, want: map[balancer.Lookup]time.Duration{host: 0, program: 10 * time.Second}},
		"a program in etcd": {fields: exec, key: "/vipd/services/db", want: map[balancer.Lookup]time.Duration{host: 0}},
	} {
		if got := balancer.LookupsOf(decodeByName(t, c.fields, c.key), &balancer.Inputs{}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: LookupsOf = %v, want %v", name, got, c.want)
		}
	}
}

// TestResolvedEndpoints compiles services whose lookups have finished. Each address in an answer
// must become an endpoint, up to discover.max. Failed lookups and refused addresses must be
// reported.
func TestResolvedEndpoints(t *testing.T) {
	members := func(addresses ...string) (all []balancer.LookupRecord) {
		for _, a := range addresses {
			all = append(all, balancer.LookupRecord{Addr: addr(a), Weight: 1})
		}
		return all
	}
	srv := balancer.Lookup{Kind: balancer.ServiceLookup, Name: "_pg._tcp.example.org", V4: true}
	host := balancer.Lookup{Kind: balancer.HostLookup, Name: "db1.example.org", V4: true}
	for name, c := range map[string]struct {
		fields, key  string
		found        map[balancer.Lookup]*balancer.Resolution
		want, reason string
	}{
		"addresses": {
			found: map[balancer.Lookup]*balancer.Resolution{host: {Records: members("192.0.2.5", "192.0.2.6")}},
			want:  "192.0.2.1:5432/1 192.0.2.5:5432/2 192.0.2.6:5432/2",
		},
		"a failure": {
			found: map[balancer.Lookup]*balancer.Resolution{host: {Records: members("192.0.2.5"), Failure: "no answer"}},
			want:  "192.0.2.1:5432/1 192.0.2.5:5432/2", reason: "endpoints[0].address: looking up db1.example.org: no answer: the known endpoints (1) are in use",
		},
		"private addresses": {
			found: map[balancer.Lookup]*balancer.Resolution{host: {Records: members("127.0.0.1", "169.254.169.254")}},
			want:  "192.0.2.1:5432/1", reason: "endpoints[0].address: loopback and link-local addresses in answers are not used (db1.example.org: 127.0.0.1 and 1 more)",
		},
		"too many": {
			fields: `, "discover": {"dns": "_pg._tcp.example.org", "max": 2}`,
			found:  map[balancer.Lookup]*balancer.Resolution{host: {}, srv: {Records: members("192.0.2.7", "192.0.2.8", "192.0.2.9")}},
			want:   "192.0.2.1:5432/1 192.0.2.7:5432/1 192.0.2.8:5432/1", reason: "discover.max: 3 endpoints were found, but only the first 2 are used",
		},
		"a program in etcd": {
			fields: `, "discover": {"exec": ["/etc/members"]}`, key: "/vipd/services/db",
			want: "192.0.2.1:5432/1", reason: "discover.exec: only a service in a node's own files can run a program",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var in balancer.Inputs
			s := decodeByName(t, c.fields, c.key)
			in.Services = in.Services.Set(s.Name, s)
			for l, r := range c.found {
				in.Resolved = in.Resolved.Set(balancer.LookupID{Service: s.Name, Lookup: l}, r)
			}
			env := balancer.Env{Capabilities: balancer.Capabilities{Mode: "test", Protocols: []balancer.Protocol{balancer.TCP}, Forwards: []balancer.Forward{balancer.NATForward}}}
			desired := new(balancer.Compiler).Next(env, in, time.Now())
			var got []string
			for _, f := range desired.Frontends.All() {
				for _, b := range f.Backends {
					got = append(got, b.Addr.String()+"/"+string(rune('0'+b.Weight)))
				}
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("backends = %s, want %s", text, c.want)
			}
			var problems []string
			if all := desired.Problems.At(s.Name); all != nil {
				for _, p := range *all {
					problems = append(problems, p.Field+": "+p.Text)
				}
			}
			if text := strings.Join(problems, "\n"); !strings.Contains(text, c.reason) || c.reason == "" && text != "" {
				t.Errorf("problems = %q, want %q", text, c.reason)
			}
		})
	}
}
