package convert

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// server is a server line, with the words of the default-server lines above it before its own.
type server struct {
	words []string
	line  int
	// checked: it has a check. used: it became an endpoint. tls: it is spoken to by TLS, and by its check too, unless that goes elsewhere.
	checked, used, tls, elsewhere bool
	// fields are the endpoint's, and at is the word that is read.
	fields map[string]any
	at     int
}

func (p *proxy) server(s *node) {
	switch s.word(0) {
	case "default-server":
		p.defaults = append(p.defaults, s.words[1:]...)
	case "server-template":
		p.note(s.line, "left out: servers that come and go join with \"vipctl register\"")
	default:
		if len(s.words) < 3 {
			p.note(s.line, "left out: a server line is server NAME ADDRESS[:PORT]")
			return
		}
		words := append(append(s.words[1:3:3], p.defaults...), s.words[3:]...)
		p.servers = append(p.servers, server{words: words, line: s.line})
	}
}

// endpointOf adds the endpoint of a server line, and reports whether it could be read.
func (p *proxy) endpointOf(s *server) bool {
	host, port := splitPort(strings.TrimPrefix(strings.TrimPrefix(s.words[1], "ipv4@"), "ipv6@"))
	if strings.HasPrefix(port, "+") || strings.HasPrefix(port, "-") {
		offset, err := strconv.ParseInt(port, 10, 32)
		sum := p.ports[0].fields()["port"].(int64) + offset
		if err != nil || len(p.ports) > 1 {
			p.note(s.line, "left out: write a service for each port of a range that the servers shift")
			return false
		}
		port = strconv.FormatInt(sum, 10)
	}
	if s.fields = p.endpointAt(p.service, s.line, host, port); s.fields == nil {
		return false
	}
	for s.at = 2; s.at < len(s.words); s.at++ {
		s.option(p, s.words[s.at])
	}
	return true
}

// value is the word behind an option.
func (e *server) value() string {
	if e.at++; e.at < len(e.words) {
		return e.words[e.at]
	}
	return ""
}

func (e *server) option(p *proxy, name string) {
	line := e.line
	switch name {
	case "check":
		e.checked = true
	case "no-check":
		e.checked = false
	case "backup":
		e.fields["backup"] = true
	case "disabled":
		e.fields["draining"] = true
	case "enabled":
		delete(e.fields, "draining")
	case "ssl":
		e.tls = true
		p.note(line, "%s: %s", name, noServerTLS)
	case "weight":
		p.amount(e.fields, line, name, "weight", e.value())
	case "maxconn":
		p.amount(e.fields, line, name, "max_connections", e.value())
	case "send-proxy":
		p.set(line, "proxy_protocol", "v1")
	case "send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn":
		p.set(line, "proxy_protocol", "v2")
	case "slowstart":
		p.setTime(p.service, line, "slow_start", e.value(), time.Millisecond)
	case "on-marked-down":
		if e.value() == "shutdown-sessions" {
			p.checks.cut = line
		}
	case "inter", "fastinter", "rise", "fall", "port", "addr", "verify", "check-ssl", "ca-file", "crt", "check-sni", "sni":
		if slices.Contains(e.words[e.at+1:], name) && name != "check-ssl" {
			e.value() // the server's own value, which stands behind that of default-server, is the one that counts
			return
		}
		e.elsewhere = e.elsewhere || name == "port" || name == "addr"
		p.checkServer(line, name, e)
	default:
		if slices.ContainsFunc(p.answers, func(a answer) bool { return a.in == "server" && slices.Contains(strings.Fields(a.words), name) }) {
			p.note(line, "%s %s: %s", name, e.value(), p.said("server", name))
		} else {
			p.note(line, "%s: %s", name, p.said("flag", name))
		}
	}
}
