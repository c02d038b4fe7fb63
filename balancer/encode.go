package balancer

import "vipd/balancer/decode"

// EncodeService is the inverse of DecodeService: the table of s, with only the fields that differ from the defaults of
// the program, as TOML and JSON encoders take it. Wishes for a VIP of a pool come last among vips, as "auto" and
// "auto:POOL"; what was allocated for them is not in the table.
func EncodeService(s *Service) map[string]any {
	d := &definition{Service: *s}
	d.VIPs = make([]vip, 0, len(s.VIPs)+len(s.Pools))
	for _, addr := range s.VIPs {
		d.VIPs = append(d.VIPs, vip{addr: addr})
	}
	for _, pool := range s.Pools {
		d.VIPs = append(d.VIPs, vip{pool: pool})
	}
	d.Ports = make([]Port, len(s.Ports))
	for i, p := range s.Ports {
		if p.TargetPort == p.Port {
			p.TargetPort = 0
		}
		d.Ports[i] = p
	}
	if s.Health != nil {
		d.Health = s.Health.reduced()
	}
	return decode.Tree(d, newDefinition())
}

// EncodeEndpoint is the inverse of DecodeEndpoint: the table of e, with only the fields that differ from the defaults.
func EncodeEndpoint(e *Endpoint) map[string]any {
	defaults := &Endpoint{}
	defaults.SetDefaults()
	return decode.Tree(e, defaults)
}

// reduced returns h without what complete fills in.
func (h *Health) reduced() *Health {
	out := *h
	if out.FastInterval == usualFastInterval(out.Interval) {
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
