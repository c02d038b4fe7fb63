package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
)

// kubePort is one of a Service's ports.
type kubePort struct {
	node     yamlNode
	name     string
	number   int64
	target   int64
	nodePort int64
	proto    balancer.Protocol
}

// kubeEndpoint is an endpoint from an EndpointSlice or an Endpoints object.
type kubeEndpoint struct {
	addr        netip.Addr
	node        yamlNode
	host        string
	zone        string
	draining    bool
	hint        yamlNode
	hintedZones []string
	// ports maps the names of the Service's ports to the endpoint's ports.
	ports map[string]int64
}

// portGroup is a set of ports with the same endpoints. vipd has one list of endpoints for all of a
// service's ports.
type portGroup struct {
	ports     []kubePort
	endpoints []*kubeEndpoint
}

// groups reads a Service's ports and endpoints, and groups the ports by their endpoints.
func (k *kubernetes) groups(n yamlNode) []*portGroup {
	endpoints := k.endpointsOf(n)
	var out []*portGroup
	byEndpoints := map[string]*portGroup{}
	ports := n.get("spec", "ports").list()
	for _, node := range ports {
		p, ok := k.port(node)
		if !ok {
			continue
		}
		var members []*kubeEndpoint
		var id strings.Builder
		for i, e := range endpoints {
			if e.ports[p.name] > 0 {
				members = append(members, e)
				fmt.Fprintf(&id, "%d ", i)
			}
		}
		if len(members) == 0 {
			id.WriteString(p.name) // ports without endpoints have separate groups
		}
		group := byEndpoints[id.String()]
		if group == nil {
			group = &portGroup{endpoints: members}
			byEndpoints[id.String()] = group
			out = append(out, group)
		}
		group.ports = append(group.ports, p)
	}
	if len(endpoints) == 0 && len(out) > 1 {
		for _, other := range out[1:] {
			out[0].ports = append(out[0].ports, other.ports...)
		}
		out = out[:1]
	}
	return out
}

// port reads one of a Service's ports. It returns false if the port can't be converted.
func (k *kubernetes) port(n yamlNode) (kubePort, bool) {
	p := kubePort{node: n, name: n.get("name").text(), proto: balancer.Protocol(strings.ToLower(cmp.Or(n.get("protocol").text(), "TCP")))}
	for _, field := range n.keys() {
		k.answer(field.line(), "port", field.text())
	}
	number, err := parsePort(n.get("port").text())
	if err != nil {
		k.note(n.line(), "left out: %v", err)
		return p, false
	}
	p.number = int64(number)
	p.target = p.number
	if target, err := parsePort(n.get("targetPort").text()); err == nil {
		p.target = int64(target)
	}
	if nodePort, err := parsePort(n.get("nodePort").text()); err == nil {
		p.nodePort = int64(nodePort)
	}
	return p, true
}

// endpointsOf lists a Service's endpoints. They come from its EndpointSlices or, if it has none,
// from its Endpoints.
func (k *kubernetes) endpointsOf(n yamlNode) []*kubeEndpoint {
	meta := n.get("metadata")
	name := key(meta.get("namespace").text(), meta.get("name").text())
	r := &endpointReader{kubernetes: k, notReady: n.get("spec", "publishNotReadyAddresses").text() == "true", seen: map[string]*kubeEndpoint{}}
	for _, slice := range k.slices[name] {
		r.slice(slice)
	}
	for _, object := range k.endpoints[name] {
		if len(k.slices[name]) > 0 {
			k.note(object.line(), "not read: the EndpointSlices of this Service contain the same endpoints")
			continue
		}
		for _, subset := range object.get("subsets").list() {
			r.subset(subset)
		}
	}
	return r.all
}

// endpointReader collects the endpoints of one Service. An endpoint may be in several slices, each
// with different ports.
type endpointReader struct {
	*kubernetes
	// notReady reports whether clients may reach endpoints that are not ready.
	notReady bool
	seen     map[string]*kubeEndpoint
	all      []*kubeEndpoint
}

// portsOf returns a slice's or subset's ports by name.
func (r *endpointReader) portsOf(n yamlNode) map[string]int64 {
	out := map[string]int64{}
	for _, p := range n.get("ports").list() {
		if number, err := parsePort(p.get("port").text()); err == nil {
			out[p.get("name").text()] = int64(number)
		} else {
			r.note(p.line(), "left out: %v", err)
		}
	}
	return out
}

func (r *endpointReader) slice(n yamlNode) {
	if kind := n.get("addressType"); kind.text() == "FQDN" {
		r.note(kind.line(), "left out: endpoints in a slice must be addresses, but these are names")
		return
	}
	ports := r.portsOf(n)
	for _, e := range n.get("endpoints").list() {
		conditions := e.get("conditions")
		ready, serving := conditions.get("ready"), conditions.get("serving")
		terminating := conditions.get("terminating").text() == "true"
		// Like kube-proxy, read only the first address.
		address := e.get("addresses").list()
		if len(address) == 0 {
			continue
		}
		one := r.endpoint(address[0], ports)
		if one == nil {
			continue
		}
		one.host, one.zone = e.get("nodeName").text(), e.get("zone").text()
		one.hint = e.get("hints", "forZones")
		for _, zone := range one.hint.list() {
			one.hintedZones = append(one.hintedZones, zone.get("name").text())
		}
		switch {
		case terminating && serving.text() != "false":
			one.draining = true
			r.note(e.line(), "draining = true: the endpoint terminates; in Kubernetes, it gets clients only if no other endpoint is ready")
		case ready.text() == "false" && !r.notReady || terminating:
			one.draining = true
			r.note(cmp.Or(ready.line(), e.line()), "draining = true: the endpoint was not ready; remove draining once the endpoint is ready, or add a health table")
		}
	}
}

// subset reads a subset of an Endpoints object.
func (r *endpointReader) subset(n yamlNode) {
	ports := r.portsOf(n)
	for _, list := range []string{"addresses", "notReadyAddresses"} {
		for _, e := range n.get(list).list() {
			one := r.endpoint(e.get("ip"), ports)
			if one == nil {
				continue
			}
			one.host = e.get("nodeName").text()
			if list == "notReadyAddresses" && !r.notReady {
				one.draining = true
				r.note(e.line(), "draining = true: the endpoint was not ready; remove draining once the endpoint is ready, or add a health table")
			}
		}
	}
}

// endpoint adds an endpoint with the ports. If the endpoint exists, it adds the ports to it. It
// returns nil if the address can't be read.
func (r *endpointReader) endpoint(address yamlNode, ports map[string]int64) *kubeEndpoint {
	addr, ok := r.host(max(1, address.line()), address.text())
	if !ok {
		return nil
	}
	// Two pods in the host's network have the same address and different ports.
	id := addr.String()
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		if one := r.seen[id]; one != nil && one.ports[name] > 0 && one.ports[name] != ports[name] {
			id += fmt.Sprintf(" %d", ports[name])
		}
	}
	one := r.seen[id]
	if one == nil {
		one = &kubeEndpoint{addr: addr, node: address, ports: map[string]int64{}}
		r.seen[id] = one
		r.all = append(r.all, one)
	}
	maps.Copy(one.ports, ports)
	return one
}

// target returns the endpoints' port for p: the first endpoint's port, or the Service's target port
// if there are no endpoints.
func (g *portGroup) target(p kubePort) int64 {
	if len(g.endpoints) == 0 {
		return p.target
	}
	return g.endpoints[0].ports[p.name]
}

func (g *portGroup) writePorts(s *service, nodePorts bool) {
	for _, p := range g.ports {
		fields := map[string]any{"port": p.number}
		if p.name != "" {
			fields["name"] = p.name
		}
		if p.proto != balancer.TCP {
			fields["protocol"] = string(p.proto)
		}
		if target := g.target(p); target != p.number {
			fields["target_port"] = target
		}
		if nodePorts && p.nodePort > 0 {
			fields["node_port"] = p.nodePort
		}
		s.ports = append(s.ports, listElement{value: fields, line: p.node.line()})
	}
}

// writeEndpoints adds the group's endpoints. An endpoint gets its own ports if they differ from the
// service's target ports.
func (g *portGroup) writeEndpoints(s *service) {
	for _, e := range g.endpoints {
		fields := s.endpoint(e.node.line(), e.addr.String(), 0)
		own := map[string]any{}
		for _, p := range g.ports {
			if port := e.ports[p.name]; port != g.target(p) {
				own[p.name] = port
			}
		}
		switch {
		case len(own) > 0 && len(g.ports) == 1:
			fields["port"] = e.ports[g.ports[0].name]
		case len(own) > 0:
			fields["ports"] = own
		}
		if e.host != "" {
			fields["node"] = e.host
		}
		if e.zone != "" {
			fields["zone"] = e.zone
		}
		if e.draining {
			fields["draining"] = true
		}
	}
}

// hints returns the line of a hint. It returns 0 unless all endpoints have hints, as kube-proxy
// requires. elsewhere is the line of a hint for a zone other than its endpoint's zone, or 0.
func (g *portGroup) hints() (line, elsewhere int) {
	for _, e := range g.endpoints {
		if len(e.hintedZones) == 0 {
			return 0, 0
		}
		line = cmp.Or(line, e.hint.line())
		if !slices.Equal(e.hintedZones, []string{e.zone}) {
			elsewhere = cmp.Or(elsewhere, e.hint.line())
		}
	}
	return line, elsewhere
}
