package convert

import "slices"

// checkPort is the port at which an endpoint is checked. 0 means the endpoint's own port.
type checkPort struct {
	endpoint int
	port     uint16
	line     int
}

// setCheckPorts sets the health table's port. If the endpoints are checked at different ports, it
// sets each endpoint's own check port instead.
func (s *service) setCheckPorts(ports []checkPort) {
	for i := range ports {
		if ports[i].port == s.ownPort(ports[i].endpoint) {
			ports[i].port = 0
		}
	}
	if slices.ContainsFunc(ports, func(p checkPort) bool { return p.port != ports[0].port }) {
		for _, p := range ports {
			if p.port != 0 {
				s.endpoints[p.endpoint].fields()["health_port"] = int64(p.port)
			}
		}
		return
	}
	if len(ports) > 0 && ports[0].port != 0 {
		port := setting{name: "port", value: int64(ports[0].port), line: ports[0].line}
		s.health = slices.Insert(s.health, min(1, len(s.health)), port) // the port follows the type
	}
}

// ownPort returns an endpoint's port, or 0 if the service has several ports.
func (s *service) ownPort(endpoint int) uint16 {
	if port := s.endpoints[endpoint].port; port != 0 {
		return port
	}
	if len(s.ports) == 1 {
		return uint16(s.ports[0].fields()["port"].(int64))
	}
	return 0
}
