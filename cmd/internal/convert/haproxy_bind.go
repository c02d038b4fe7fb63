package convert

import (
	"slices"
	"strings"

	"vipd/balancer"
)

// haproxyTraits are the bind line options that decide whether vipd can serve the line.
type haproxyTraits struct {
	tls, verified, proxied bool
	// device is the interface or the network namespace to which the listener is restricted.
	device string
	mss    int64
}

const (
	harmlessBindFlags  = "v4v6 v6only transparent tfo defer-accept"
	harmlessBindValues = "name id nice process thread backlog level user group mode uid gid shards severity-output guid-prefix"
	tlsBindValues      = "crt crt-list alpn npn ciphers ciphersuites ssl-min-ver ssl-max-ver ca-file ca-verify-file crl-file curves ecdhe ca-ignore-err " +
		"crt-ignore-err tls-ticket-keys ca-sign-file ca-sign-pass ocsp-update sigalgs client-sigalgs"
)

// binds returns a frontend's listeners, grouped by their traits.
func (h *haproxy) binds(front *section) []bindGroup[haproxyTraits] {
	var groups []bindGroup[haproxyTraits]
	for _, s := range front.statements {
		if s.is("bind") {
			traits := h.bindTraits(s)
			listeners, failed := h.bindPlaces(s)
			groups = groupBy(groups, traits, s.line, listeners, failed...)
		}
	}
	if len(groups) == 0 {
		return []bindGroup[haproxyTraits]{{line: front.line}}
	}
	return groups
}

// bindTraits reads a bind line's options.
func (h *haproxy) bindTraits(s *statement) (t haproxyTraits) {
	t.tls = slices.Contains(s.rest(2), "ssl")
	for i := 2; i < len(s.words); i++ {
		word, value := s.words[i], s.word(i+1)
		in := func(list string) bool { return slices.Contains(strings.Fields(list), word) }
		switch {
		case in(harmlessBindFlags), word == "ssl":
			continue
		case in(harmlessBindValues):
			i++
		case word == "accept-proxy":
			t.proxied = true
		case word == "accept-netscaler-cip":
			t.proxied = true
			i++
		case word == "interface", word == "namespace":
			t.device = value
			i++
		case word == "mss":
			t.mss = max(0, number(value))
			i++
		case word == "maxconn":
			h.note(s.line, "maxconn %s: "+nearBound, plain(value))
			i++
		case word == "verify" && t.tls:
			t.verified = value != "none"
			i++
		case in(tlsBindValues) && t.tls:
			i++
		case t.tls: // a TLS option without a value
			continue
		default:
			h.note(s.line, "%s: "+noEquivalent, plain(word))
		}
	}
	return t
}

// bindPlaces reads the addresses and ports on a bind line. failed lists the reasons why some can't
// be served.
func (h *haproxy) bindPlaces(s *statement) (out []listener, failed []error) {
	v4v6 := slices.Contains(s.words, "v4v6")
	v6only := slices.Contains(s.words, "v6only")
	for place := range strings.SplitSeq(s.word(1), ",") {
		if strings.HasPrefix(place, "/") || strings.Contains(place, "@") && !strings.HasPrefix(place, "ipv") {
			failed = append(failed, h.errorf(s.line, "vipd listens on addresses, not on Unix sockets or descriptors"))
			continue
		}
		only6 := strings.HasPrefix(place, "ipv6@") || v6only
		host, ports := splitPort(strings.TrimPrefix(strings.TrimPrefix(place, "ipv4@"), "ipv6@"))
		more, err := h.listeners(listener{proto: balancer.TCP, line: s.line}, host, ports, "bind", !only6, only6 || v4v6)
		if err != nil {
			failed = append(failed, err)
		}
		out = append(out, more...)
	}
	return out, failed
}

// refuse disables a service that would behave differently from a bind line and its servers.
func (p *proxy) refuse(g bindGroup[haproxyTraits]) {
	t := g.traits
	if t.mss > 0 {
		p.set(g.line, "mss", t.mss)
	}
	if t.device != "" {
		p.disable(p.service, g.line, "HAProxy accepts only connections on interface %s here, but vipd serves a VIP on every interface: the nearest setting is source_ranges, the networks that may connect", plain(t.device))
	}
	if t.proxied {
		p.disable(p.service, g.line, noPROXY)
	}
	var toTLS, toPlain *server
	for i := range p.servers {
		s := &p.servers[i]
		if !s.used {
			continue
		}
		if s.has("ssl") {
			toTLS = s
		} else {
			toPlain = s
		}
	}
	switch {
	case t.tls && (toTLS == nil || toPlain != nil):
		p.disable(p.service, g.line, "HAProxy terminates TLS here, but vipd does not: encrypted connections would reach endpoints that expect plaintext")
	case t.tls && t.verified:
		p.disable(p.service, g.line, "HAProxy verifies client certificates, but vipd does not read TLS")
	case t.tls:
		p.note(g.line, noTLSEnd)
	case toTLS != nil:
		p.disable(p.service, toTLS.line, "HAProxy speaks TLS with the server, but vipd does not: plaintext connections would reach an endpoint that expects TLS")
	}
}
