package balancer

import "vipd/balancer/decode"

// EncodeService is the inverse of DecodeService. It returns the table of s with the fields that
// differ from vipd's defaults, for TOML and JSON encoders. Requests for pool addresses follow the
// addresses in vips, as "auto" and "auto:POOL". Allocated addresses are not in the table.
func EncodeService(s *Service) map[string]any {
	d := &serviceTable{Service: *s}
	d.VIPs = make([]vipEntry, 0, len(s.VIPs)+len(s.Pools))
	for _, addr := range s.VIPs {
		d.VIPs = append(d.VIPs, vipEntry{addr: addr})
	}
	for _, pool := range s.Pools {
		d.VIPs = append(d.VIPs, vipEntry{pool: pool})
	}
	for i := range s.Endpoints {
		d.Endpoints = append(d.Endpoints, newEndpointTable(&s.Endpoints[i]))
	}
	d.Ports = make([]Port, len(s.Ports))
	for i, p := range s.Ports {
		if p.TargetPort == p.Port {
			p.TargetPort = 0
		}
		d.Ports[i] = p
	}
	for _, h := range s.Checks() {
		d.Checks = append(d.Checks, *h.withoutDerived())
	}
	return decode.Tree(d, newServiceTable())
}

// EncodeEndpoint is the inverse of DecodeEndpoint. It returns the table of e with the fields that
// differ from the defaults.
func EncodeEndpoint(e *Endpoint) map[string]any {
	defaults := &endpointTable{}
	defaults.SetDefaults()
	d := newEndpointTable(e)
	return decode.Tree(&d, defaults)
}

func newEndpointTable(e *Endpoint) endpointTable {
	return endpointTable{Host: hostEntry{addr: e.Address, name: e.Name}, Endpoint: *e}
}

// withoutDerived returns a copy of h without the defaults that fillDerived sets.
func (h *Health) withoutDerived() *Health {
	out := *h
	if out.Timeout == defaultTimeout(out.Interval) {
		out.Timeout = 0
	}
	if out.FastInterval == defaultFastInterval(out.Interval) {
		out.FastInterval = 0
	}
	if out.Type == HTTPHealth || out.Type == HTTPSHealth {
		clear := func(field *string, usual string) {
			if *field == usual {
				*field = ""
			}
		}
		clear(&out.Status, defaultHealthStatus)
		clear(&out.Method, defaultHealthMethod)
		clear(&out.Path, defaultHealthPath)
	}
	return &out
}
