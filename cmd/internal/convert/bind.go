package convert

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"vipd/balancer"
)

// servicesAt creates services for the listeners of one of the origin's services. failed lists the
// reasons why some of its other listeners can't be served. If no listener remains, the service is
// disabled.
func (d *draft) servicesAt(line int, name string, listeners []listener, failed []error) []*service {
	services := d.splitByPorts(line, name, listeners)
	if len(services) == 0 {
		s := d.newService(line, name)
		services = []*service{s}
		if len(failed) == 0 {
			d.disable(s, line, "it has no address and port that vipd can serve")
		}
		for _, err := range failed {
			at, text := placed(line, err)
			d.disable(s, at, "%s", text)
		}
		return services
	}
	for _, err := range failed {
		at, text := placed(line, err)
		d.note(at, "left out: %s", text)
	}
	return services
}

// placed returns err's line and text. If err has no line, it returns the argument line instead.
func placed(line int, err error) (int, string) {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Line, e.Text
	}
	return line, err.Error()
}

// bindGroup holds a service's listeners that have the same traits.
type bindGroup[T comparable] struct {
	traits    T
	line      int
	listeners []listener
	failed    []error
}

// groupBy adds listeners to the group with these traits, or to a new group.
func groupBy[T comparable](groups []bindGroup[T], traits T, line int, listeners []listener, failed ...error) []bindGroup[T] {
	i := slices.IndexFunc(groups, func(g bindGroup[T]) bool { return g.traits == traits })
	if i < 0 {
		i, groups = len(groups), append(groups, bindGroup[T]{traits: traits, line: line})
	}
	groups[i].listeners = append(groups[i].listeners, listeners...)
	groups[i].failed = append(groups[i].failed, failed...)
	return groups
}

// listener is an address and port on which the origin listens.
type listener struct {
	addr  netip.Addr
	port  uint16
	proto balancer.Protocol
	line  int
}

// splitByPorts creates one service for all ports that have the same set of addresses.
func (d *draft) splitByPorts(line int, name string, listeners []listener) []*service {
	type port struct {
		number uint16
		proto  balancer.Protocol
	}
	var ports []port
	vips := map[port][]listener{}
	seen := map[listener]bool{}
	for _, l := range listeners {
		p := port{l.port, l.proto}
		if vips[p] == nil {
			ports = append(ports, p)
		}
		if where := (listener{addr: l.addr, port: l.port, proto: l.proto}); !seen[where] {
			seen[where] = true
			vips[p] = append(vips[p], l)
		}
	}
	sets := map[string]*service{}
	var out []*service
	for _, p := range ports {
		var addresses strings.Builder
		for _, l := range vips[p] {
			addresses.WriteString(l.addr.String() + " ")
		}
		key := addresses.String()
		s := sets[key]
		if s == nil {
			s = d.newService(line, name)
			for _, l := range vips[p] {
				s.vips = append(s.vips, listElement{value: l.addr.String(), line: l.line})
			}
			sets[key], out = s, append(out, s)
		}
		fields := map[string]any{"port": int64(p.number)}
		if p.proto != balancer.TCP {
			fields["protocol"] = string(p.proto)
		}
		s.ports = append(s.ports, listElement{value: fields, line: vips[p][0].line})
	}
	return out
}
