package balancer

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"vipd/balancer/snap"
)

// TestPortRangeText formats ports and ranges as text and as JSON, and parses the results. The
// parsed value must equal the original.
func TestPortRangeText(t *testing.T) {
	for text, want := range map[string]PortRange{"80": 80, "8000-8999": NewPortRange(8000, 8999), "80-80": 80, "all": AllPorts, "1-65535": AllPorts, "65535": 65535} {
		p, err := ParsePortRange(text)
		if p != want || err != nil {
			t.Errorf("ParsePortRange(%q) = %v, %v, want %v", text, p, err, want)
		}
		raw, err := json.Marshal(want)
		var back PortRange
		if err != nil || json.Unmarshal(raw, &back) != nil || back != want {
			t.Errorf("%[1]s as JSON = %[2]s, decoded = %[3]s, want %[1]s", want, raw, back)
		}
		key := Key{netip.MustParseAddr("fd00::1"), want, TCP}
		if got, err := ParseKey(key.String()); got != key || err != nil {
			t.Errorf("ParseKey(%[1]q) = %[2]v, %[3]v; want %[1]v", key, got, err)
		}
	}
	for _, text := range []string{"", "0", "65536", "-1", "80-", "9000-8000", "a-b", "1-2-3", "0-5"} {
		if p, err := ParsePortRange(text); err == nil {
			t.Errorf("ParsePortRange(%q) = %s, want an error", text, p)
		}
	}
}

// TestFrontendAt looks up ports inside and outside the frontends' port ranges. The frontend with
// the narrowest range that contains a port must get the port. Only this frontend may list the port
// in Open.
func TestFrontendAt(t *testing.T) {
	vip := netip.MustParseAddr("10.96.0.10")
	key := func(p PortRange) Key { return Key{vip, p, TCP} }
	var all snap.Map[Key, *Frontend]
	for _, p := range []PortRange{80, 8080, NewPortRange(8000, 8999), AllPorts} {
		all = all.Set(key(p), &Frontend{Key: key(p)})
	}
	all = all.Set(Key{vip, 443, UDP}, &Frontend{})
	for port, want := range map[PortRange]PortRange{
		80: 80, 8080: 8080, 8000: NewPortRange(8000, 8999), 8999: NewPortRange(8000, 8999), 7999: AllPorts, 443: AllPorts, 65535: AllPorts,
	} {
		if got, f := FrontendAt(all, key(port)); got != key(want) || f == nil {
			t.Errorf("FrontendAt(%s) = %s, want %s", port, got.Port, want)
		}
		for _, p := range []PortRange{NewPortRange(8000, 8999), AllPorts} {
			open := all.At(key(p)).withOpen(all).Open
			if in := slices.ContainsFunc(open, func(q PortRange) bool { return q.Contains(port.First()) }); in != (p == want) {
				t.Errorf("frontend %s: Open = %s, but port %s belongs to the frontend %s", p, open, port, want)
			}
		}
	}
	if _, f := FrontendAt(all, Key{netip.MustParseAddr("10.96.0.11"), 80, TCP}); f != nil {
		t.Error("FrontendAt found a frontend at an address without frontends")
	}
}

// rangesMode describes a mode that can serve port ranges, and all ports of an address.
var rangesMode = Capabilities{Mode: "test", Protocols: []Protocol{TCP, UDP}, Forwards: []Forward{NATForward}, MaxPorts: 65535}

func rangeService(name Name, vip string, ports ...PortRange) *Service {
	s := &Service{Name: name, VIPs: []netip.Addr{netip.MustParseAddr(vip)}, Policy: Policy{Forward: NATForward, NoEndpoints: RejectClients, ProxyProtocol: NoProxyProtocol}}
	for _, p := range ports {
		s.Ports = append(s.Ports, Port{Name: "p" + p.String(), Port: p, Protocol: TCP, TargetPort: p})
	}
	s.Endpoints = []Endpoint{{Address: netip.MustParseAddr("192.168.1.11"), Weight: 1}}
	return s
}

// TestRangeConflicts compiles services that share a VIP. If one service claims part of another
// service's range, it must get that part. If two ranges overlap only partly, only the first
// service's range must be served.
func TestRangeConflicts(t *testing.T) {
	const vip = "10.96.0.10"
	for name, c := range map[string]struct {
		services []*Service
		want     map[PortRange]Name
		problems map[Name]string
	}{
		"exact port in a range": {
			[]*Service{rangeService("a", vip, NewPortRange(8000, 8999)), rangeService("b", vip, 8080)},
			map[PortRange]Name{NewPortRange(8000, 8999): "a", 8080: "b"}, nil,
		},
		"range in all": {
			[]*Service{rangeService("a", vip, AllPorts), rangeService("b", vip, NewPortRange(8000, 8999))},
			map[PortRange]Name{AllPorts: "a", NewPortRange(8000, 8999): "b"}, nil,
		},
		"overlap": {
			[]*Service{rangeService("a", vip, NewPortRange(8000, 8999)), rangeService("b", vip, NewPortRange(8900, 9100))},
			map[PortRange]Name{NewPortRange(8000, 8999): "a"},
			map[Name]string{"b": "10.96.0.10:8900-9100/tcp is held by service a: choose another address or port"},
		},
		"all twice": {
			[]*Service{rangeService("a", vip, AllPorts), rangeService("b", vip, AllPorts)},
			map[PortRange]Name{AllPorts: "a"},
			map[Name]string{"b": "10.96.0.10:all/tcp is held by service a: choose another address or port"},
		},
		"neighbours": {
			[]*Service{rangeService("a", vip, NewPortRange(1, 10)), rangeService("b", vip, NewPortRange(11, 20))},
			map[PortRange]Name{NewPortRange(1, 10): "a", NewPortRange(11, 20): "b"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var in Inputs
			for _, s := range c.services {
				in.Services = in.Services.Set(s.Name, s)
			}
			d := Compile(Env{Capabilities: rangesMode}, in)
			if d.Frontends.Len() != len(c.want) {
				t.Errorf("frontends = %d, want %d", d.Frontends.Len(), len(c.want))
			}
			for p, want := range c.want {
				if f := d.Frontends.At(Key{netip.MustParseAddr(vip), p, TCP}); f == nil || f.Service != want {
					t.Errorf("frontend for ports %s = %v, want a frontend of service %s", p, f, want)
				}
			}
			for name, all := range d.Problems.All() {
				if len(*all) != 1 || (*all)[0].Text != c.problems[name] {
					t.Errorf("service %s: problems = %v, want %q", name, *all, c.problems[name])
				}
			}
			if d.Problems.Len() != len(c.problems) {
				t.Errorf("services with problems = %d, want %d", d.Problems.Len(), len(c.problems))
			}
		})
	}
}

// TestRangeOnOwnAddress claims port ranges on the node's own address. A range that contains port 22
// must be refused. If the service is from etcd, a range that contains a port of another program on
// the node must also be refused.
func TestRangeOnOwnAddress(t *testing.T) {
	const vip = "192.168.1.1"
	own := []netip.Addr{netip.MustParseAddr(vip)}
	listening := []Reserved{{Port: 25, Proto: TCP, Description: "a program on this node listens on it"}}
	one := snap.Map[Name, *Pool]{}.Set("one", &Pool{Name: "one", CIDRs: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")}, VIPPolicy: VIPPolicy{Hold: HoldOne}})
	for name, c := range map[string]struct {
		port   PortRange
		env    Env
		pools  snap.Map[Name, *Pool]
		etcd   bool
		served bool
	}{
		"all":                             {port: AllPorts, env: Env{Local: own}},
		"nearly all":                      {port: NewPortRange(1, 65534), env: Env{Local: own}},
		"all of a foreign address":        {port: AllPorts, served: true},
		"all of an owned VIP":             {port: AllPorts, env: Env{Local: own}, pools: one, served: true},
		"all of an owned VIP in a subnet": {port: AllPorts, env: Env{Local: own, LocalInSubnets: own}, pools: one},
		"all of a VIP of keepalived":      {port: AllPorts, env: Env{Local: own, ExternalVIPs: true}, served: true},
		"a program, from a file":          {port: NewPortRange(23, 30), env: Env{Local: own, Reserved: listening}, served: true},
		"a program, from etcd":            {port: NewPortRange(23, 30), env: Env{Local: own, Reserved: listening, Allowed: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/32")}}, etcd: true},
		"port 22 alone":                   {port: 22, env: Env{Local: own, Reserved: listening}, served: true},
	} {
		in := Inputs{Pools: c.pools}
		s := rangeService("a", vip, c.port)
		if c.etcd {
			s.Origin = Origin{Key: "etcd"}
		}
		in.Services = in.Services.Set("a", s)
		c.env.Capabilities = rangesMode
		d := Compile(c.env, in)
		if got := d.Frontends.Len() > 0; got != c.served {
			t.Errorf("%s: served = %v, want %v; problems: %v", name, got, c.served, d.Problems.At("a"))
		}
		problems := d.Problems.At("a")
		if !c.served && (problems == nil || (*problems)[0].Field != "ports[0].port" || (*problems)[0].Kind != PortReserved) {
			t.Errorf("%s: problems = %v, want one about ports[0].port", name, problems)
		}
	}
}

// TestRangesBeyondTheMode compiles port ranges for modes with different limits. Ranges that the
// mode can't serve must be reported, not served.
func TestRangesBeyondTheMode(t *testing.T) {
	moved := rangeService("a", "10.96.0.10", NewPortRange(8000, 8999))
	moved.Ports[0].TargetPort = NewPortRange(9000, 9999)
	plain := rangeService("a", "10.96.0.10", NewPortRange(8000, 8999))
	for name, c := range map[string]struct {
		service *Service
		max     int
		moved   int
		rules   int
		want    string
	}{
		"none":           {plain, 0, 0, 0, "test mode does not support ranges of ports: port 8000-8999 is not served"},
		"too many":       {plain, 999, 0, 0, "test mode supports ranges of up to 999 ports: port 8000-8999 is not served"},
		"served":         {plain, 1000, 0, 0, ""},
		"moved":          {moved, 1000, 1000, 0, ""},
		"not moved":      {moved, 1000, 0, 0, "test mode can't map a range to other ports: port 8000-8999 is not served. Use nftables mode, or let the endpoints listen on the same ports"},
		"moved too many": {moved, 1000, 999, 0, "test mode can map ranges of up to 999 ports to other ports: port 8000-8999 is not served. Divide the range, or let the endpoints listen on the same ports"},
		"rules":          {moved, 1000, 1000, 1000 * len(moved.Endpoints), ""},
		"too many rules": {moved, 1000, 1000, 1000*len(moved.Endpoints) - 1, fmt.Sprintf("test mode needs a rule for each port and endpoint, %d at most: port 8000-8999 is not served. Use nftables mode, or let the endpoints listen on the same ports", 1000*len(moved.Endpoints)-1)},
	} {
		mode := rangesMode
		mode.MaxPorts, mode.MaxMovedPorts, mode.MaxMovedRules = c.max, c.moved, c.rules
		var in Inputs
		in.Services = in.Services.Set("a", c.service)
		d := Compile(Env{Capabilities: mode}, in)
		if got := d.Frontends.Len() > 0; got != (c.want == "") {
			t.Errorf("%s: served = %v, want %v", name, got, c.want == "")
		}
		if all := d.Problems.At("a"); c.want != "" && (all == nil || (*all)[0].Text != c.want) {
			t.Errorf("%s: problems = %v, want %q", name, all, c.want)
		}
	}
}

// TestEncodeRanges decodes the ports of a service and encodes them again. A single port must be
// encoded as a number, and a range as a string.
func TestEncodeRanges(t *testing.T) {
	ports := []any{
		map[string]any{"name": "a", "port": int64(80), "target_port": int64(8080)},
		map[string]any{"name": "b", "port": "8000-8999"},
		map[string]any{"name": "c", "port": "9000-9001", "target_port": "19000-19001"},
		map[string]any{"name": "d", "port": "all"},
	}
	s, problems := DecodeService("web", map[string]any{"vips": []any{"10.96.0.10"}, "ports": ports}, nil, nil, SeverityError)
	if s == nil {
		t.Fatal(problems)
	}
	if got := EncodeService(s)["ports"]; !reflect.DeepEqual(got, ports) {
		t.Errorf("ports = %v, want %v", got, ports)
	}
}
