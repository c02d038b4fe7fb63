package balancer_test

import "testing"

func TestWrongService(t *testing.T) {
	const label = `1 to 63 characters of a-z, 0-9 and "-", without "-" at either end`
	checkWrong(t, []wrong{
		{fields: ``, want: []string{
			`vips: needs at least one address, such as "10.96.0.10"`,
			`ports: needs at least one table with a port, such as port = 80`,
		}},
		{fields: `"vips": ["10.0.0.1"], "health": {"type": "tcp"}, "endpoints": [{"address": "10.0.0.2", "port": 9}],
			"ports": [{"port": "8000-8999", "target_port": 80, "node_port": 30000}]`, want: []string{
			`ports[0].target_port: 80 must have as many ports as port, which has 1000: leave it out to keep the client's port`,
			`ports[0].node_port: a range of ports can't have a node port: leave it out`,
			`endpoints[0].port: can't replace a range of ports: set target_port of ports[0]`,
			`health.port: needs the port to check, because ports[0] is a range`,
		}},
		{fields: `"vips": ["10.0.0.1"], "ports": [{"name": "a", "port": "8000-8999"}, {"name": "b", "port": "8900-9000"}, {"name": "c", "port": 8080},
			{"name": "d", "port": "all"}, {"name": "e", "port": 80, "target_port": "80-81"}]`, want: []string{
			`ports[1].port: 8900-9000/tcp overlaps ports[0]`,
			`ports[4].target_port: 80-81 is a range, but port 80 is a single port`,
		}},
		{fields: `"vips": ["10.0.0.1"], "ports": [{"port": "9-8"}]`, want: []string{`ports[0].port: "9-8" ends before it starts: write "8-9"`}},
		{fields: `"vips": ["10.0.0.1"], "ports": [{"port": "80"}]`, want: []string{`ports[0].port: needs a number without quotes: write 80`}},
		{name: "Web_1", fields: web, want: []string{`"Web_1" is not a valid service name: names are DNS labels, ` + label}},
		{name: "-web", fields: web, want: []string{`"-web" is not a valid service name: names are DNS labels, ` + label}},
		{fields: web + `, "endpoint": [], "node_port": 30080, "zzz": 1`, want: []string{
			`endpoint: unknown field; did you mean "endpoints"?`,
			`node_port: unknown field; it is a field of ports`,
			`zzz: unknown field`,
		}},
		{fields: `"vips": "10.0.0.1", "ports": {"port": 80}`, want: []string{
			`vips: needs a list: write ["10.0.0.1"]`,
			`ports: needs a list of tables, not one table: write [[...]] for its heading, or [{ ... }]`,
		}},
		{fields: `"ports": [{"port": 80}], "vips": ["10.0.0.300", "atuo", "10.0.0.0/24", "10.0.0.1:80", "fe80::1%eth0", "auto:", 7]`, want: []string{
			`vips[0]: "10.0.0.300" is not an IP address, such as 192.168.1.11 or fd00::11`,
			`vips[1]: "atuo" is not an IP address, such as 192.168.1.11 or fd00::11, nor "auto" or "auto:POOL"`,
			`vips[2]: "10.0.0.0/24" is a network; write a single address, such as 10.0.0.0`,
			`vips[3]: "10.0.0.1:80" has a port; write only the address: 10.0.0.1`,
			`vips[4]: "fe80::1%eth0" has a zone, which is not supported here; write fe80::1`,
			`vips[5]: "auto:" is not a valid request for an address: write "auto" for the default pool, or "auto:POOL" with a pool name of a-z, 0-9 and -`,
			`vips[6]: needs text in quotes, not the number 7`,
		}},
		{fields: `"ports": [{"port": 80}], "vips": ["::", "0.0.0.0", "224.0.0.1", "ff02::1", "255.255.255.255", "10.0.0.1", "::ffff:10.0.0.1", "169.254.0.1", "fe80::10"]`, want: []string{
			`vips[0]: :: is the unspecified address: a VIP must be the address of a single host`,
			`vips[1]: 0.0.0.0 is the unspecified address: a VIP must be the address of a single host`,
			`vips[2]: 224.0.0.1 is a multicast address: a VIP must be the address of a single host`,
			`vips[3]: ff02::1 is a multicast address: a VIP must be the address of a single host`,
			`vips[4]: 255.255.255.255 is the broadcast address: a VIP must be the address of a single host`,
			`vips[6]: 10.0.0.1 is a duplicate of vips[5]`,
			`warning: vips[8]: fe80::10 is link-local: clients need an interface name (fe80::10%eth0), and not every mode supports it. Use an address in fd00::/8`,
		}},
		{fields: `"ports": [{"port": 80}], "vips": ["10.0.0.1"], "source_ranges": ["10.0.0.0/8", "fd00::/8"], "endpoints": [{"address": "10.0.0.2"}]`, want: []string{
			`warning: source_ranges[1]: fd00::/8 has no effect: the service has no IPv6 VIP`,
		}},
		{fields: `"ports": [{"port": 80}], "vips": ["10.0.0.1", "fd00::1"], "source_ranges": ["10.0.0.0/8"], "endpoints": [{"address": "10.0.0.2"}]`, want: []string{
			`warning: source_ranges: no IPv6 client can connect, because no range is IPv6: add a range, such as ::/0`,
		}},
		{fields: `"ports": [{"port": 80}], "vips": ["fd00::1"], "endpoints": [{"address": "fe80::2"}]`, want: []string{
			`warning: endpoints[0].address: fe80::2 is link-local, and its interface can't be set here, so connections fail. Use a global address, or one in fd00::/8`,
		}},
		{fields: web + `, "scheduler": "least_conn"`, want: []string{
			`scheduler: "least_conn" is not one of rr, wrr, random, lc, wlc, sh, dh, mh, sed, nq; did you mean "wlc"?`,
		}},
		{fields: web + `, "scheduler": "wr", "affinity": "clientip", "snat": "sometimes", "locality": true`, want: []string{
			`scheduler: "wr" is not one of rr, wrr, random, lc, wlc, sh, dh, mh, sed, nq; did you mean "rr"?`,
			`snat: "sometimes" is not one of auto, always, never`,
			`affinity: "clientip" is not one of none, client_ip; did you mean "client_ip"?`,
			`locality: needs one of "any", "prefer_zone", "prefer_node", "node_only", not true`,
		}},
		{fields: web + `, "affinity_timeout": 30, "drain_timeout": "30", "connect_timeout": "-1s", "idle_timeout": "1 minute", "slow_start": {}`, want: []string{
			`drain_timeout: "30" needs a unit: write "30s" for seconds`,
			`connect_timeout: -1s is negative; use 1ms or more`,
			`slow_start: needs a duration in quotes, such as "30s", not a table`,
			`affinity_timeout: 30 needs a unit: write "30s" for seconds`,
			`idle_timeout: "1 minute" is not a duration, such as "500ms", "30s", "5m" or "3h"`,
		}},
		{fields: web + `, "access_log": "web.log"`, want: []string{
			`access_log: "web.log" must be "journal", "" or the absolute path of a file: each host writes its own file`,
		}},
		{fields: web + `, "mss": 65496`, want: []string{`mss: 65496 is out of range; use 0 to 65495`}},
		{fields: web + `, "mss": 535`, want: []string{`mss: 535 is out of range; use 0 (no clamp) or 536 to 65495 (from 1220 with IPv6 VIPs)`}},
		{fields: `"vips": ["fd00::1"], "ports": [{"port": 80}], "mss": 1219`, want: []string{
			`mss: 1219 is out of range; use 0 (no clamp) or 536 to 65495 (from 1220 with IPv6 VIPs)`,
		}},
		{fields: web + `, "affinity": "client_ip", "affinity_timeout": "500ms", "connect_timeout": "0s"`, want: []string{
			`connect_timeout: 0s is too short; use 1ms or more`,
			`affinity_timeout: 500ms is out of range; use 1s to 576h`,
		}},
		{fields: web + `, "affinity": "client_ip", "affinity_timeout": "577h"`, want: []string{
			`affinity_timeout: 577h is out of range; use 1s to 576h`,
		}},
		{fields: web + `, "affinity": "client_ip", "affinity_timeout": "-1s"`, want: []string{
			`affinity_timeout: -1s is out of range; use 1s to 576h`,
		}},
		{fields: web + `, "affinity_timeout": "1h"`, want: []string{`warning: affinity_timeout: has no effect without affinity = "client_ip"`}},
		{fields: web + `, "source_ranges": ["10.0.0.1/8", "10.0.0.1", "ten", " 10.0.0.0/8 ", "::ffff:10.1.0.0/112"]`, want: []string{
			`source_ranges[0]: "10.0.0.1/8" has host bits set: did you mean 10.0.0.0/8?`,
			`source_ranges[1]: "10.0.0.1" lacks a prefix length: write 10.0.0.1/32 for this single address`,
			`source_ranges[2]: "ten" is not a network, such as 10.0.0.0/8 or fd00::/64`,
		}},
	})
}

func TestWrongPorts(t *testing.T) {
	checkWrong(t, []wrong{
		{fields: vip + `, "ports": [{"port": 0}]`, want: []string{`ports[0].port: 0 is out of range; use 1 to 65535`}},
		{fields: vip + `, "ports": [{"port": 65536}]`, want: []string{`ports[0].port: 65536 is out of range; use 1 to 65535`}},
		{fields: vip + `, "ports": [{"port": "80"}]`, want: []string{`ports[0].port: needs a number without quotes: write 80`}},
		{fields: vip + `, "ports": [{"port": 80.5}]`, want: []string{`ports[0].port: needs a whole number, not the number 80.5`}},
		{fields: vip + `, "ports": [80]`, want: []string{`ports[0]: needs a table, such as { port = 80 }, not the number 80`}},
		{fields: vip + `, "ports": [{"prot": 80}]`, want: []string{
			`ports[0].prot: unknown field; did you mean "port"?`,
			`ports[0].port: needs a port, 1 to 65535`,
		}},
		{fields: vip + `, "ports": [{"port": 80, "protocol": "TCP"}]`, want: []string{
			`ports[0].protocol: "TCP" is not one of tcp, udp, sctp; did you mean "tcp"?`,
		}},
		{fields: vip + `, "ports": [{"port": 80}, {"port": 443, "name": "HTTPS"}]`, want: []string{
			`ports[0].name: needs a name, because the service has several ports`,
			`ports[1].name: "HTTPS" is not a valid port name: port names are 1 to 63 characters of a-z, 0-9 and "-", without "-" at either end`,
		}},
		{fields: vip + `, "ports": [{"port": 80, "name": "a", "node_port": 30080}, {"port": 80, "name": "a", "node_port": 30080}]`, want: []string{
			`ports[1].name: the name "a" is already used by ports[0]`,
			`ports[1].port: port 80/tcp is a duplicate of ports[0]`,
			`ports[1].node_port: node port 30080/tcp is a duplicate of ports[0]`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "name": "dns", "node_port": 53}, {"port": 53, "name": "dns-tcp", "protocol": "udp", "node_port": 53}]`},
		{fields: web + `, "proxy_protocol": "v2", "forward": "dr"`, want: []string{
			`proxy_protocol: v2 can't be used with forward = "dr", which forwards packets unchanged: remove one of the two`,
		}},
		{fields: web + `, "snat": "always", "forward": "tunnel"`, want: []string{
			`warning: snat: "always" has no effect with forward = "tunnel", which does not change the client's address`,
		}},
		{fields: vip + `, "ports": [{"port": 80, "target_port": 8080}], "forward": "dr", "endpoints": [{"address": "10.0.0.1"}, {"address": "10.0.0.2", "port": 81}]`, want: []string{
			`ports[0].target_port: 8080 differs from port 80: forward = "dr" forwards packets unchanged, so endpoints must listen on the VIP's port`,
			`endpoints[1].port: 81 differs from port 80: forward = "dr" forwards packets unchanged, so endpoints must listen on the VIP's port`,
		}},
		{fields: two + `, "forward": "dr", "endpoints": [{"address": "10.0.0.1", "ports": {"https": 8443}}]`, want: []string{
			`endpoints[0].ports.https: 8443 differs from port 443: forward = "dr" forwards packets unchanged, so endpoints must listen on the VIP's port`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}], "proxy_protocol": "v1", "connect_timeout": "1s", "drain_timeout": "1s", "idle_timeout": "1s"`, want: []string{
			`proxy_protocol: the header needs a TCP port, or with "v2" a TCP or UDP port: leave the setting out`,
			`warning: connect_timeout: has no effect: the service has no TCP port`,
			`warning: drain_timeout: has no effect: UDP flows leave a removed endpoint at once`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}], "proxy_protocol": "v2", "max_connection_age": "1h"`, want: []string{
			`warning: max_connection_age: has no effect: the service has no TCP port`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "sctp"}], "proxy_protocol": "v2"`, want: []string{
			`proxy_protocol: the header needs a TCP port, or with "v2" a TCP or UDP port: leave the setting out`,
		}},
		{fields: web + `, "accept_proxy_protocol": true`, want: []string{
			`accept_proxy_protocol: needs trusted, the networks whose headers vipd accepts, such as trusted = ["10.0.0.0/24"]`,
		}},
		{fields: web + `, "trusted": ["10.0.0.0/24"]`, want: []string{`warning: trusted: has no effect without accept_proxy_protocol = true`}},
		{fields: web + `, "accept_proxy_protocol": true, "trusted": ["fd00::/8"], "source_ranges": ["fd00::/8"]`, want: []string{
			`warning: trusted: no IPv4 client can connect, because no range is IPv4: add a range, such as 0.0.0.0/0`,
			`warning: trusted[0]: fd00::/8 has no effect: the service has no IPv6 VIP`,
		}},
		{fields: web + `, "accept_proxy_protocol": true, "trusted": ["10.0.0.0/8"], "forward": "dr"`, want: []string{
			`accept_proxy_protocol: can't be used with forward = "dr", which forwards packets unchanged: remove one of the two`,
		}},
		{fields: web + `, "source": "client", "snat": "always"`, want: []string{
			`source: "client" can't be used with snat = "always", which replaces the client's address: remove one of the two`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}], "accept_proxy_protocol": true, "trusted": ["10.0.0.0/8"]`, want: []string{
			`accept_proxy_protocol: only TCP connections can carry the header, and the service has no TCP port: leave the setting out`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}]`, defaults: `{"accept_proxy_protocol": true, "trusted": ["10.0.0.0/8"]}`},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "sctp"}], "idle_timeout": "1s", "drain_timeout": "1s"`, want: []string{
			`warning: idle_timeout: has no effect: the service has neither a TCP nor a UDP port`,
		}},
	})
}

func TestWrongEndpoints(t *testing.T) {
	checkWrong(t, []wrong{
		{fields: web + `, "endpoints": ["10.0.0.1"]`, want: []string{`endpoints[0]: needs a table, such as { address = "192.168.1.11" }, not the text "10.0.0.1"`}},
		{fields: web + `, "endpoints": [{}]`, want: []string{`endpoints[0].address: needs an address, such as 192.168.1.11`}},
		{fields: web + `, "endpoints": [{"address": "web1 example.com"}, {"address": "10.0.0.1:80"}, {"address": "0.0.0.0"}, {"address": "239.1.1.1"}]`, want: []string{
			`endpoints[0].address: "web1 example.com" is not an IP address, such as 192.168.1.11 or fd00::11, nor a DNS name`,
			`endpoints[1].address: "10.0.0.1:80" has a port; write only the address: 10.0.0.1`,
			`endpoints[2].address: 0.0.0.0 is the unspecified address: an endpoint needs the address of a single host`,
			`endpoints[3].address: 239.1.1.1 is a multicast address: an endpoint needs the address of a single host`,
		}},
		{fields: web + `, "endpoints": [{"address": "10.0.0.1", "health_port": 9000}, {"address": "10.0.0.2", "health": "none"}, {"address": "10.0.0.3", "health": "off"}]`, want: []string{
			`endpoints[2].health: "off" is not a valid value; use "none"`,
			`warning: endpoints[0].health_port: has no effect: the service has no health checks`,
			`warning: endpoints[1].health: has no effect: the service has no health checks`,
		}},
		{fields: web + `, "endpoints": [{"address": "10.0.0.1", "weight": 65536}, {"address": "10.0.0.2", "weight": -1}, {"address": "10.0.0.3", "max_connections": -1},
			{"address": "10.0.0.4", "max_connections": 2147483647}, {"address": "10.0.0.5", "max_connections": 4294967297}]`, want: []string{
			`endpoints[0].weight: 65536 is out of range; use 0 (no new connections) to 65535`,
			`endpoints[1].weight: -1 is out of range; use 0 (no new connections) to 65535`,
			`endpoints[2].max_connections: -1 is out of range; use 0 (no limit) to 2147483647`,
			`endpoints[4].max_connections: 4294967297 is out of range; use 0 (no limit) to 2147483647`,
		}},
		{fields: web + `, "endpoints": [{"address": "10.0.0.1", "weight": 99999999999999999999, "draining": "true", "backup": 1, "node": 7}]`, want: []string{
			`endpoints[0].weight: 99999999999999999999 is out of range`,
			`endpoints[0].node: needs text in quotes, not the number 7`,
			`endpoints[0].draining: needs true without quotes`,
			`endpoints[0].backup: needs true or false, not the number 1`,
		}},
		{fields: two + `, "endpoints": [{"address": "10.0.0.1", "ports": {"htp": 1, "https": 0, "a b": 3, "http": 70000}}]`, want: []string{
			`endpoints[0].ports.http: 70000 is out of range; use 0 to 65535`,
			`endpoints[0].ports.https: 0 is not a port; use 1 to 65535`,
			`endpoints[0].ports."a b": the service has no port named "a b"; its ports are http, https`,
			`endpoints[0].ports.htp: the service has no port named "htp"; did you mean "http"?`,
		}},
		{fields: web + `, "endpoints": [{"address": "10.0.0.1", "ports": {"http": 8080}}]`, want: []string{
			`endpoints[0].ports.http: the service's port has no name: use port, or give ports[0] the name "http"`,
		}},
		{fields: web + `, "endpoints": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}, {"address": "::ffff:10.0.0.1", "port": 80}]`, want: []string{
			`endpoints[2]: 10.0.0.1 has the same ports as endpoints[0], so it is a duplicate`,
		}},
		{fields: web + `, "endpoints": [{"address": "10.0.0.1"}, {"address": "10.0.0.1", "port": 8080}]`},
		{fields: two + `, "endpoints": [{"address": "10.0.0.1"}, {"address": "10.0.0.1", "ports": {"https": 8443}}]`, want: []string{
			`warning: endpoints[1]: 10.0.0.1 has the same port as endpoints[0] for http, so the two count only once for that port`,
		}},
		{fields: web + `, "endpoints": [{"address": "fd00::1"}, {"address": "10.96.0.10"}, {"address": "10.96.0.10", "port": 81}]`, want: []string{
			`warning: endpoints[0].address: fd00::1 is never used: the service has no IPv6 VIP`,
		}},
		{fields: two + `, "endpoints": [{"address": "10.96.0.10", "ports": {"http": 443, "https": 8443}}]`, want: []string{
			`warning: endpoints[0].address: 10.96.0.10 is a VIP of this service, and the endpoint's port is another port of the service: connections might loop`,
		}},
		{fields: vip + `, "ports": [{"port": 80, "node_port": 80}], "endpoints": [{"address": "fd00::1"}]`},
		{fields: `"vips": ["auto"], "ports": [{"port": 80}], "endpoints": [{"address": "fd00::1"}]`},
		{fields: web + `, "locality": "prefer_node", "endpoints": [{"address": "10.0.0.1"}]`, want: []string{`warning: locality: prefer_node has no effect: no endpoint sets node`}},
		{fields: web + `, "locality": "prefer_zone", "endpoints": [{"address": "10.0.0.1", "node": "a"}]`, want: []string{`warning: locality: prefer_zone has no effect: no endpoint sets zone`}},
		{fields: web + `, "locality": "node_only", "endpoints": [{"address": "10.0.0.1"}]`, want: []string{`warning: locality: node_only leaves no endpoint to use: no endpoint sets node`}},
		{fields: web + `, "locality": "node_only"`},
		// Problems that are only consequences of another problem are not reported.
		{fields: vip + `, "ports": [{"port": "http"}], "endpoints": [{"address": "10.0.0.1", "ports": {"x": 1}}, {"address": "10.0.0.1"}]`, want: []string{
			`ports[0].port: "http" is not a port, a range such as "8000-8999", or "all"`,
		}},
	})
}

func TestWrongDefaults(t *testing.T) {
	checkWrong(t, []wrong{
		{fields: web, defaults: `{"scheduler": "x", "nonsense": 1, "vips": []}`, want: []string{
			`scheduler: from [defaults]: "x" is not one of rr, wrr, random, lc, wlc, sh, dh, mh, sed, nq`,
		}},
		{fields: web + `, "scheduler": "rr"`, defaults: `{"scheduler": "x"}`},
		{fields: web + `, "scheduler": null`, defaults: `{"scheduler": "x"}`},
		{fields: web, defaults: `{"affinity_timeout": "1h"}`},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}]`, defaults: `{"proxy_protocol": "v2", "drain_timeout": "1s"}`},
		{fields: web, defaults: `{"health": {"type": "tcp", "interval": "1s", "timeout": "2s"}}`, want: []string{
			`health.timeout: from [defaults]: 2s must be below interval, which is 1s`,
		}},
	})
}
