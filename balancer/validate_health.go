package balancer

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer/decode"
)

func formatted(d time.Duration) string { return decode.FormatDuration(d) }

// checkHealth checks the health table without the other settings of the service.
func (r *healthReader) checkHealth(h *Health) {
	if h.Type == "" {
		r.errorf("type", "needs a type: %s", strings.Join(h.Type.Values(), ", "))
	} else {
		r.checkBelongs(h)
		r.checkType(h)
	}
	r.checkAgent(h.Agent)
	r.checkPaths(h)
	r.checkTimes(h)
	if h.Rise < 1 {
		r.errorf("rise", "%d is too small; 1 or more checks in a row must pass", h.Rise)
	}
	if h.Fall < 1 {
		r.errorf("fall", "%d is too small; 1 or more checks in a row must fail", h.Fall)
	}
	if h.PanicThreshold < 0 || h.PanicThreshold > 100 {
		r.errorf("panic_threshold", "%d is out of range; use 0 to 100 (percent)", h.PanicThreshold)
	}
	if (h.CertFile == "") != (h.KeyFile == "") {
		set, missing := "cert_file", "key_file"
		if h.CertFile == "" {
			set, missing = missing, set
		}
		r.errorf(set, "also needs %s: a certificate is used together with its key", missing)
	}
	if h.Source.IsValid() {
		if why := NotUnicast(h.Source); why != "" {
			r.errorf("source", "%s is %s: set the address of this host from which checks connect", h.Source, why)
		}
	}
}

// checkTimes checks the durations in h against their limits and each other.
func (r *healthReader) checkTimes(h *Health) {
	if r.isBroken("interval") {
		return
	}
	if h.FastInterval < minFastInterval && !r.isBroken("fast_interval") {
		r.errorf("fast_interval", "%s is too short; use %s or more", formatted(h.FastInterval), formatted(minFastInterval))
	}
	if h.FastInterval > h.Interval {
		r.errorf("fast_interval", "%s is above interval, which is %s: set a shorter time", formatted(h.FastInterval), formatted(h.Interval))
	}
	switch {
	case r.isBroken("timeout"):
	case h.Timeout < minTimeout:
		r.errorf("timeout", "%s is too short; use %s or more", formatted(h.Timeout), formatted(minTimeout))
	case h.Timeout >= h.Interval:
		r.errorf("timeout", "%s must be below interval, which is %s", formatted(h.Timeout), formatted(h.Interval))
	}
}

// healthField is a field of a health check that only some check types have.
type healthField struct {
	name  string
	types []HealthType
}

func healthFields() []healthField {
	web := []HealthType{HTTPHealth, HTTPSHealth}
	named := []HealthType{HTTPHealth, HTTPSHealth, GRPCHealth}
	secure := []HealthType{HTTPSHealth, GRPCHealth}
	sent := []HealthType{TCPHealth, UDPHealth}
	network := []HealthType{TCPHealth, HTTPHealth, HTTPSHealth, GRPCHealth, DNSHealth, UDPHealth}
	return []healthField{
		{"path", web},
		{"host", named},
		{"status", web},
		{"method", web},
		{"headers", web},
		{"expect", []HealthType{TCPHealth, HTTPHealth, HTTPSHealth, DNSHealth, UDPHealth}},
		{"send", sent},
		{"steps", []HealthType{TCPHealth}},
		{"command", []HealthType{ExecHealth}},
		{"user", []HealthType{ExecHealth}},
		{"query", []HealthType{DNSHealth, GRPCHealth}},
		{"ca_file", secure},
		{"cert_file", secure},
		{"key_file", secure},
		{"verify", secure},
		{"source", network},
		{"mark", network},
	}
}

// checkBelongs reports fields that the check's type does not have.
func (r *healthReader) checkBelongs(h *Health) {
	for _, f := range healthFields() {
		if r.sets(f.name) && !slices.Contains(f.types, h.Type) {
			r.errorf(f.name, "is for checks of type %s; this check is of type %s", joinWords(f.types), h.Type)
		}
	}
}

// checkType checks the fields that the check's type requires.
func (r *healthReader) checkType(h *Health) {
	switch h.Type {
	case HTTPHealth, HTTPSHealth:
		r.checkRequest(h)
	case TCPHealth:
		r.checkSteps(h)
	case UDPHealth:
		if h.Send == "" && h.Expect == "" {
			r.errorf("send", "needs send or expect: without them, a UDP check proves nothing")
		}
	case DNSHealth:
		if h.Query == "" {
			r.errorf("query", "needs a name to resolve, such as example.com")
		} else if _, err := ParseQuestion(h.Query); err != nil {
			r.errorf("query", "%v", err)
		}
	case ExecHealth:
		if len(h.Command) == 0 || h.Command[0] == "" {
			r.errorf("command", `needs a program and its arguments, such as ["/usr/local/bin/check", "-q"]`)
		}
	}
	if strings.ContainsFunc(h.Host, notInURL) || strings.Contains(h.Host, "/") {
		r.errorf("host", "%q is not a host name, such as example.com", h.Host)
	}
}

// checkRequest checks the parts of an HTTP request and its expected answer.
func (r *healthReader) checkRequest(h *Health) {
	if !strings.HasPrefix(h.Path, "/") || strings.ContainsFunc(h.Path, notInURL) {
		r.errorf("path", "%q is not a path: a path starts with / and has no spaces", h.Path)
	}
	if _, valid := StatusIn(h.Status, 0); !valid {
		r.errorf("status", `%q is not valid; write codes from 100 to 599, and ranges of them, such as "200-399" or "200,204"`, h.Status)
	}
	if strings.Trim(h.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		r.errorf("method", "%q is not a method, such as GET or HEAD", h.Method)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		path := decode.Join("headers", name)
		switch {
		case !isToken(name):
			r.errorf(path, "%q is not the name of a header", name)
		case strings.EqualFold(name, "Host"):
			r.errorf(path, "set health.host instead")
		case strings.ContainsFunc(h.Headers[name], isControl):
			r.errorf(path, "contains a line break or another control character")
		}
	}
}

// checkProbed reports checks that have no port to check: TCP checks without a TCP port, UDP checks
// without a UDP port, and checks of a port range. Such checks would mark every endpoint as down.
func (r *tableReader) checkProbed(s *Service) {
	if len(s.Ports) == 0 || r.isBroken("ports") {
		return
	}
	ownPort := func(e Endpoint) bool { return e.HealthPort == 0 && !e.IsUnchecked() }
	if len(s.Endpoints) > 0 && !slices.ContainsFunc(s.Endpoints, ownPort) {
		return
	}
	ranged := slices.IndexFunc(s.Ports, func(p Port) bool { return p.Port.IsRange() })
	for i, h := range s.Checks() {
		if h.Port != 0 {
			continue
		}
		if ranged >= 0 {
			r.healthReader(i).errorf("port", "needs the port to check, because ports[%d] is a range", ranged)
			continue
		}
		proto := TCP
		switch h.Type {
		case "", ExecHealth, DNSHealth:
			continue
		case UDPHealth:
			proto = UDP
		}
		if !slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == proto }) {
			r.healthReader(i).warnf("type", "%s checks need a %s port, but the service has none: set health.port",
				h.Type, strings.ToUpper(string(proto)))
		}
	}
}

// checkSource reports a source address whose family no endpoint has. A source from [defaults] is
// ignored, because it is meant for other services. If the service has no endpoints, nothing is
// reported, because the registered endpoints are unknown.
func (r *tableReader) checkSource(s *Service) {
	if !r.sets("health") || len(s.Endpoints) == 0 || s.Discover != nil || r.isBroken("endpoints") {
		return
	}
	for i, h := range s.Checks() {
		v4 := h.Source.Is4()
		if h.Source.IsValid() && !slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool { return e.Name != "" || e.Address.Is4() == v4 }) {
			r.healthReader(i).warnf("source", "%s is not used: no endpoint has an address of the same family", h.Source)
		}
	}
}

// StatusIn reports whether a list of HTTP status codes and ranges, such as 200-299,404, contains
// code, and whether the list is valid.
func StatusIn(list string, code int) (in, valid bool) {
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			high = low
		}
		l, errLow := strconv.ParseUint(low, 10, 16)
		h, errHigh := strconv.ParseUint(high, 10, 16)
		if errLow != nil || errHigh != nil || l < 100 || h > 599 || l > h {
			return false, false
		}
		in = in || l <= uint64(code) && uint64(code) <= h
	}
	return in, true
}

// isToken reports whether name is a valid HTTP header name.
func isToken(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~") == ""
}

func isControl(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }

func notInURL(c rune) bool { return c <= ' ' || c == 0x7f }
