package convert

import (
	"fmt"
	"slices"
	"time"
)

// keepalived and ipvsadm both configure IPVS. Neither needs a mode: auto chooses ipvs if the kernel
// has it.

// scheduler sets the scheduler from its IPVS name.
func (d *draft) scheduler(s *service, line int, name string) {
	as, known := map[string]scheduling{
		"lblc": {"dh", lookedUp}, "lblcr": {"dh", lookedUp},
		"twos": {"wrr", "the nearest setting is scheduler = \"wrr\""},
		"fo":   {"wrr", inOrder}, "ovf": {"wrr", inOrder},
	}[name]
	if slices.Contains([]string{"rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh"}, name) {
		as, known = scheduling{scheduler: name}, true
	}
	if !known {
		as = scheduling{"wlc", fmt.Sprintf("vipd has no scheduler %q; scheduler is set to \"wlc\"", plain(name))}
	}
	d.schedule(s, line, as)
}

// These are notes about IPVS schedulers.
const (
	lookedUp = "the nearest setting is scheduler = \"dh\", which also depends on the VIP's address, and ignores load"
	inOrder  = "the nearest setting is scheduler = \"wrr\": set backup = true in the endpoints that wait for a failure, and max_connections in the endpoints that overflow"
)

func (s *service) persistent(line int, timeout time.Duration) {
	s.set(line, "affinity", "client_ip")
	s.set(line, "affinity_timeout", seconds(timeout))
}

// granularity adds a note about a netmask that groups clients.
func (d *draft) granularity(line int) {
	d.note(line, "not set: to group clients by network, set affinity_prefix to the prefix lengths for IPv4 and IPv6, such as [24, 64]")
}

// These are both programs' default persistence timeouts.
const (
	usualKeepalivedPersistence = 6 * time.Minute
	usualIPVSADMPersistence    = 5 * time.Minute
)

// forwardPorts sets the endpoints' ports to the service's port if the forwarding method does not
// change ports.
func (d *draft) forwardPorts(s *service) {
	if way := find(s.settings, "forward"); way == nil || way.value == "nat" {
		return
	}
	for i := range s.endpoints {
		e := &s.endpoints[i]
		if e.port != 0 && len(s.ports) == 1 && s.ports[0].fields()["port"] != int64(e.port) {
			d.note(e.line, "port %d is not used: without address translation, packets keep the VIP's port", e.port)
		}
		e.port = 0
	}
}
