package balancer_test

import "testing"

func TestWrongHealth(t *testing.T) {
	checkWrong(t, []wrong{
		{fields: web + `, "health": "tcp"`, want: []string{`health: needs a table, such as { type = "tcp" }, not the text "tcp"`}},
		{fields: check + `{}`, want: []string{`health.type: needs a type: tcp, http, https, grpc, dns, udp, exec`}},
		{fields: check + `{"type": "htp", "path": 1}`, want: []string{
			`health.type: "htp" is not one of tcp, http, https, grpc, dns, udp, exec; did you mean "http"?`,
			`health.path: needs text in quotes, not the number 1`,
		}},
		{fields: check + `{"type": "tcp", "interval": "2s", "timeout": "2s"}`, want: []string{`health.timeout: 2s must be below interval, which is 2s`}},
		{fields: check + `{"type": "tcp", "interval": "1s"}`},
		{fields: check + `{"type": "tcp", "interval": "1s", "timeout": "1s"}`, want: []string{`health.timeout: 1s must be below interval, which is 1s`}},
		{fields: check + `{"type": "tcp", "interval": "1ms"}`, want: []string{`health.interval: 1ms is out of range; use 100ms to 24h`}},
		{fields: check + `{"type": "tcp", "interval": "-2s", "timeout": "5s", "fast_interval": "3s"}`, want: []string{
			`health.interval: -2s is out of range; use 100ms to 24h`,
		}},
		{fields: check + `{"type": "tcp", "interval": "25h"}`, want: []string{`health.interval: 25h is out of range; use 100ms to 24h`}},
		{fields: check + `{"type": "tcp", "fast_interval": "3s", "timeout": "1us"}`, want: []string{
			`health.fast_interval: 3s is above interval, which is 2s: set a shorter time`,
			`health.timeout: 1µs is too short; use 1ms or more`,
		}},
		{fields: check + `{"type": "tcp", "fast_interval": "99ms"}`, want: []string{`health.fast_interval: 99ms is too short; use 100ms or more`}},
		{fields: check + `{"type": "tcp", "fast_interval": "-1s"}`, want: []string{`health.fast_interval: -1s is negative; use 0s or more`}},
		{fields: check + `{"type": "tcp", "interval": "100ms", "timeout": "50ms"}`},
		{fields: check + `{"type": "tcp", "timeout": "-1s"}`, want: []string{`health.timeout: -1s is negative; use 0s or more`}},
		{fields: check + `{"type": "tcp", "rise": 0, "fall": -1, "panic_threshold": 101, "mark": -1, "port": 70000}`, want: []string{
			`health.port: 70000 is out of range; use 0 to 65535`,
			`health.mark: -1 is out of range; use 0 to 4294967295`,
			`health.rise: 0 is too small; 1 or more checks in a row must pass`,
			`health.fall: -1 is too small; 1 or more checks in a row must fail`,
			`health.panic_threshold: 101 is out of range; use 0 to 100 (percent)`,
		}},
		{fields: check + `{"type": "tcp", "path": "/", "verify": true, "command": [], "query": "x"}`, want: []string{
			`health.path: is for checks of type http, https; this check is of type tcp`,
			`health.command: is for checks of type exec; this check is of type tcp`,
			`health.query: is for checks of type dns, grpc; this check is of type tcp`,
			`health.verify: is for checks of type https, grpc; this check is of type tcp`,
		}},
		{fields: check + `{"type": "exec", "source": "10.0.0.1", "timeout": "1s"}`, want: []string{
			`health.source: is for checks of type tcp, http, https, grpc, dns, udp; this check is of type exec`,
			`health.command: needs a program and its arguments, such as ["/usr/local/bin/check", "-q"]`,
		}},
		{fields: check + `{"type": "exec", "command": "check -q"}`, want: []string{`health.command: needs a list: write ["check -q"]`}},
		{fields: check + `{"type": "dns", "query": "a b c"}`, want: []string{`health.query: "a b c" is not a name and a type, such as "example.com AAAA"`}},
		{fields: check + `{"type": "dns", "query": " "}`, want: []string{`health.query: " " is not a name and a type, such as "example.com AAAA"`}},
		{fields: check + `{"type": "dns", "query": "a ZZ"}`, want: []string{
			`health.query: "ZZ" is not a supported record type; the types are A, AAAA, CNAME, MX, NS, PTR, SOA, SRV, TXT`,
		}},
		{fields: check + `{"type": "dns", "query": "a..b"}`, want: []string{`health.query: "a..b" is not a valid DNS name, such as "example.com"`}},
		{fields: check + `{"type": "dns", "query": ". NS"}`},
		{fields: check + `{"type": "grpc", "query": "a b c"}`},
		{fields: check + `{"type": "dns"}`, want: []string{`health.query: needs a name to resolve, such as example.com`}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}], "health": {"type": "udp"}`, want: []string{
			`health.send: needs send or expect: without them, a UDP check proves nothing`,
		}},
		{fields: check + `{"type": "https", "cert_file": "/c"}`, want: []string{`health.cert_file: also needs key_file: a certificate is used together with its key`}},
		{fields: check + `{"type": "https", "ca_file": "ca.pem", "cert_file": "./c", "key_file": "../k"}`, want: []string{
			`health.ca_file: "ca.pem" must be absolute: each host reads its own file`,
			`health.cert_file: "./c" must be absolute: each host reads its own file`,
			`health.key_file: "../k" must be absolute: each host reads its own file`,
		}},
		{fields: check + `{"type": "exec", "command": ["bin/check", "a/b"]}`, want: []string{
			`health.command[0]: "bin/check" must be absolute, or a name that is looked up in PATH: each host runs its own program`,
		}},
		{fields: check + `{"type": "exec", "command": ["check", "a/b"]}`},
		{fields: check + `{"type": "grpc", "key_file": "/k"}`, want: []string{`health.key_file: also needs cert_file: a certificate is used together with its key`}},
		{fields: check + `{"type": "http", "path": "healthz", "host": "a/b", "method": "get", "status": "200-"}`, want: []string{
			`health.path: "healthz" is not a path: a path starts with / and has no spaces`,
			`health.status: "200-" is not valid; write codes from 100 to 599, and ranges of them, such as "200-399" or "200,204"`,
			`health.method: "get" is not a method, such as GET or HEAD`,
			`health.host: "a/b" is not a host name, such as example.com`,
		}},
		{fields: check + `{"type": "http", "status": "399-200"}`, want: []string{
			`health.status: "399-200" is not valid; write codes from 100 to 599, and ranges of them, such as "200-399" or "200,204"`,
		}},
		{fields: check + `{"type": "http", "status": "200, 204,300-301"}`},
		{fields: check + `{"type": "http", "headers": {"X A": "1", "Host": "b", "X-B": "a\nb", "X-C": 1, "X-D": "ok"}}`, want: []string{
			`health.headers.X-C: needs text in quotes, not the number 1`,
			`health.headers.Host: set health.host instead`,
			`health.headers."X A": "X A" is not the name of a header`,
			`health.headers.X-B: contains a line break or another control character`,
		}},
		{fields: check + `{"type": "http", "source": "224.0.0.1", "on_failure": "kill", "from": "cloud"}`, want: []string{
			`health.on_failure: "kill" is not one of keep, cut`,
			`health.from: "cloud" is not one of node, fleet`,
			`health.source: 224.0.0.1 is a multicast address: set the address of this host from which checks connect`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}], "health": {"type": "tcp"}`, want: []string{
			`warning: health.type: tcp checks need a TCP port, but the service has none: set health.port`,
		}},
		{fields: check + `{"type": "tcp", "source": "fd00::1"}, "endpoints": [{"address": "10.0.0.1"}]`, want: []string{
			`warning: health.source: fd00::1 is not used: no endpoint has an address of the same family`,
		}},
		{fields: check + `{"type": "tcp", "source": "192.0.2.1"}, "endpoints": [{"address": "10.0.0.1"}]`},
		{fields: check + `{"type": "tcp", "source": "fd00::1"}`},
		{fields: check + `{"type": "udp", "send": "x"}`, want: []string{
			`warning: health.type: udp checks need a UDP port, but the service has none: set health.port`,
		}},
		{fields: check + `{"type": "udp", "send": "x", "port": 53}`},
		{fields: check + `[{"type": "http"}, {"type": "tcp", "port": 81, "rise": 5}]`},
		{fields: check + `[{"type": "http", "agent": {"port": 9707}}, {"type": "tcp", "agent": {"port": 9707, "interval": "5s"}}]`},
		{fields: check + `{"type": "http", "agent": {"interval": "1ms"}}`, want: []string{
			`health.agent.interval: 1ms is out of range; use 1s to 1h`,
			`health.agent.port: needs the agent's port, such as 9707`,
		}},
		{fields: check + `{"type": "http", "agent": 9707}`, want: []string{
			`health.agent: needs a table, such as { port = 9707 }, not the number 9707`,
		}},
		{fields: check + `[{"type": "http", "need": "any", "panic_threshold": 50}, {"type": "tcp", "need": "any"}, {"type": "tcp", "port": 1}]`},
		{fields: check + `[{"type": "http", "timeout": "9s"}, {"path": "/"}, "tcp", {"type": "exec", "need": "some"}]`, want: []string{
			`health[2]: needs a table, such as { type = "tcp" }, not the text "tcp"`,
			`health[3].need: "some" is not one of all, any`,
			`health[0].timeout: 9s must be below interval, which is 2s`,
			`health[1].type: needs a type: tcp, http, https, grpc, dns, udp, exec`,
			`health[3].command: needs a program and its arguments, such as ["/usr/local/bin/check", "-q"]`,
		}},
		{fields: check + `[{"type": "http"}, {"type": "tcp", "on_failure": "cut"}, {"type": "tcp", "on_failure": "keep", "from": "node"}]`, want: []string{
			`health[2].on_failure: keep differs from cut in health[1], but the setting applies to the whole service: write it in only one check`,
		}},
		{fields: check + `{"type": "http", "need": "any"}`, want: []string{`warning: health.need: has no effect: the service has a single check`}},
		{fields: check + `"tcp"`, want: []string{`health: needs a table, such as { type = "tcp" }, not the text "tcp"`}},
		{fields: check + `{"type": "tcp", "steps": [{"send": "a", "expect": "b"}, {"send_hex": "0d0A"}, {"expect_regexp": "(?m)^role:(a|b)\\r"}]}`},
		{fields: check + `{"type": "http", "steps": [{"send": "a"}]}`, want: []string{`health.steps: is for checks of type tcp; this check is of type http`}},
		{fields: check + `{"type": "tcp", "send": "a", "steps": [{"expect": "b"}]}`, want: []string{
			`health.steps: can't be used together with send and expect: make them the first step`,
		}},
		{fields: check + `{"type": "tcp", "steps": [{}, {"send": "a", "send_hex": "61"}, {"expect": "a", "expect_hex": "61"}, {"send_hex": "6"}, {"expect_hex": "0x61"}]}`, want: []string{
			`health.steps[0]: needs send or expect: without them, a step does nothing`,
			`health.steps[1]: has both send and send_hex: keep only one of them`,
			`health.steps[2]: has more than one of expect, expect_hex and expect_regexp: keep only one of them`,
			`health.steps[3].send_hex: needs an even number of hexadecimal digits, such as "0d0a"`,
			`health.steps[4].expect_hex: needs an even number of hexadecimal digits, such as "0d0a"`,
		}},
		{fields: check + `{"type": "tcp", "steps": [{"expect_regexp": "a$"}, {"expect_regexp": "(a"}, {"expect_regexp": "a*"}, {"expect": 1}, "PING"]}`, want: []string{
			`health.steps[3].expect: needs text in quotes, not the number 1`,
			`health.steps[4]: needs a table, such as { send = "PING\r\n", expect = "+PONG" }, not the text "PING"`,
			`health.steps[0].expect_regexp: must not contain $, \z, \b or \B, because an answer can arrive in parts: write the characters that follow, such as \r\n`,
			"health.steps[1].expect_regexp: error parsing regexp: missing closing ): `(a`",
			`health.steps[2].expect_regexp: matches an empty answer, so the check would prove nothing`,
		}},
		{fields: vip + `, "ports": [{"port": 53, "protocol": "udp"}], "health": {"type": "dns", "query": "example.com"}`},
	})
}
