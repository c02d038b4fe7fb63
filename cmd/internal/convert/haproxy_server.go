package convert

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// server is a server line, combined with the options of the default-server lines above it.
type server struct {
	name, place string
	line        int
	// options maps each option to its last value, or to "" for an option without a value.
	options map[string]string
	// endpoint is the index of the server's endpoint. used reports whether the server has an
	// endpoint.
	endpoint int
	used     bool
}

func (s *server) has(option string) bool {
	_, has := s.options[option]
	return has
}

// checked reports whether the server has a check.
func (s *server) checked() bool { return s.has("check") }

// serverValues lists the server options that have a value.
const serverValues = "addr agent-addr agent-inter agent-port agent-send alpn ca-file check-alpn check-pool-conn-name check-proto check-sni ciphers ciphersuites " +
	"client-sigalgs cookie crl-file crt curves downinter error-limit fall fastinter guid hash-key id idle-ping init-addr init-state inter interface log-bufsize " +
	"log-proto max-reuse maxconn maxqueue minconn namespace observe on-error on-marked-down on-marked-up pool-low-conn pool-max-conn pool-purge-delay port " +
	"proto proxy-v2-options redir resolve-net resolve-opts resolve-prefer resolvers rise set-proxy-v2-tlv-fmt shard sigalgs slowstart sni socks4 source " +
	"ssl-max-ver ssl-min-ver tcp-ut track usesrc verify verifyhost weight ws"

// convertedOptions lists the server options that the functions below read.
const convertedOptions = "addr agent-addr agent-check agent-inter agent-port backup ca-file check check-sni check-ssl disabled fall fastinter inter maxconn on-marked-down port rise send-proxy send-proxy-v2 " +
	"send-proxy-v2-ssl send-proxy-v2-ssl-cn slowstart ssl track verify weight"

// addServer reads a server, server-template or default-server line.
func (p *proxy) addServer(s *statement) {
	switch s.word(0) {
	case "default-server":
		p.defaults = append(p.defaults, s.words[1:]...)
	case "server-template":
		p.note(s.line, "left out: to add servers that change at run time, use \"vipctl register\"")
	default:
		if len(s.words) < 3 {
			p.note(s.line, "left out: a server line must have the form \"server NAME ADDRESS[:PORT]\"")
			return
		}
		one := server{name: s.word(1), place: s.word(2), line: s.line, options: map[string]string{}}
		p.readOptions(&one, p.defaults)
		p.readOptions(&one, s.rest(3))
		p.servers = append(p.servers, one)
	}
}

// readOptions reads a server's options, and adds a note for each option without an equivalent.
func (p *proxy) readOptions(s *server, words []string) {
	for i := 0; i < len(words); i++ {
		name, value := words[i], ""
		hasValue := slices.Contains(strings.Fields(serverValues), name)
		if hasValue && i+1 < len(words) {
			i++
			value = words[i]
		}
		switch off, isOff := strings.CutPrefix(name, "no-"); {
		case isOff:
			delete(s.options, off)
		case name == "enabled":
			delete(s.options, "disabled")
		case slices.Contains(strings.Fields(convertedOptions), name):
			s.options[name] = value
		case hasValue:
			p.note(s.line, "%s %s: %s", name, plain(value), p.noteOf("server", name))
		default:
			p.note(s.line, "%s: %s", plain(name), p.noteOf("flag", name))
		}
	}
}

// endpointOf adds a server's endpoint, and reports whether it has an address.
func (p *proxy) endpointOf(s *server) bool {
	host, port := splitPort(strings.TrimPrefix(strings.TrimPrefix(s.place, "ipv4@"), "ipv6@"))
	if strings.HasPrefix(port, "+") || strings.HasPrefix(port, "-") {
		offset, err := strconv.ParseInt(port, 10, 32)
		if err != nil || len(p.ports) != 1 {
			p.note(s.line, "left out: the server maps a range of ports to other ports; write a service for each port")
			return false
		}
		port = strconv.FormatInt(p.ports[0].fields()["port"].(int64)+offset, 10)
	}
	fields := p.endpointAt(p.service, s.line, host, port)
	if fields == nil {
		return false
	}
	s.endpoint = len(p.endpoints) - 1
	for _, option := range []struct{ name, field string }{{"weight", "weight"}, {"maxconn", "max_connections"}} {
		if s.has(option.name) {
			p.amount(fields, s.line, option.name, option.field, s.options[option.name])
		}
	}
	if s.has("backup") {
		fields["backup"] = true
	}
	if s.has("disabled") {
		fields["draining"] = true
	}
	return true
}

// usedServers returns the servers that have an endpoint.
func (p *proxy) usedServers() []*server {
	var out []*server
	for i := range p.servers {
		if p.servers[i].used {
			out = append(out, &p.servers[i])
		}
	}
	return out
}

// serverSettings sets the fields that HAProxy has per server but vipd has per service.
func (p *proxy) serverSettings() {
	for i := range p.servers {
		p.servers[i].used = p.endpointOf(&p.servers[i])
	}
	var ramps []ramp
	backup := 0
	for _, s := range p.usedServers() {
		ramps = append(ramps, ramp{line: s.line, text: s.options["slowstart"], unit: time.Millisecond})
		switch {
		case p.allBackups || !s.has("backup"):
			continue
		case backup == 0:
			backup = s.line
		default:
			p.endpoints[s.endpoint].fields()["draining"] = true
			p.note(s.line, "is drained: HAProxy uses this backup only if the server on line %d fails, but vipd's backups share connections; see \"vipctl undrain\"", backup)
		}
	}
	p.slowStart(p.service, ramps)
	p.proxyProtocol()
}

// proxyProtocol sets proxy_protocol if all servers get the same header. If their headers differ, it
// disables the service.
func (p *proxy) proxyProtocol() {
	version := func(s *server) string {
		switch {
		case s.has("send-proxy"):
			return "v1"
		case s.has("send-proxy-v2"), s.has("send-proxy-v2-ssl"), s.has("send-proxy-v2-ssl-cn"):
			return "v2"
		}
		return ""
	}
	servers := p.usedServers()
	for _, s := range servers {
		if version(s) != version(servers[0]) {
			p.disable(p.service, s.line, "the server on line %d gets a different PROXY header, but all of a service's endpoints get the same header: write a service for each kind", servers[0].line)
			return
		}
	}
	if len(servers) > 0 && version(servers[0]) != "" {
		p.set(servers[0].line, "proxy_protocol", version(servers[0]))
	}
}
