package convert

import (
	"slices"
	"time"
)

// What keepalived and ipvsadm share: both configure IPVS. Neither needs a mode: auto takes ipvs where the kernel has it.

// scheduler sets the scheduler that has the name in IPVS.
func (d *draft) scheduler(s *service, line int, name string) {
	switch name {
	case "rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh":
		s.set(line, "scheduler", name)
	case "lblc", "lblcr":
		s.set(line, "scheduler", "dh")
		d.note(line, "nearest is scheduler = \"dh\", which spreads by the address of the VIP, too, and does not look at load")
	case "twos":
		s.set(line, "scheduler", "wrr")
		d.note(line, "nearest is scheduler = \"wrr\"")
	case "fo", "ovf":
		s.set(line, "scheduler", "wrr")
		d.note(line, "nearest is scheduler = \"wrr\": set backup = true in the endpoints that are to wait for a failure, and max_connections in those that overflow")
	default:
		s.set(line, "scheduler", "wlc")
		d.note(line, "vipd has no scheduler %q; scheduler is \"wlc\"", plain(name))
	}
}

// persistent keeps clients on their endpoints.
func (s *service) persistent(line int, timeout time.Duration) {
	s.set(line, "affinity", "client_ip")
	s.set(line, "affinity_timeout", seconds(timeout))
}

// granularity notes a mask that groups clients.
func (d *draft) granularity(line int) {
	d.note(line, "affinity is by the client's whole address; nearest is scheduler = \"sh\" where clients change their addresses")
}

// usualPersistence is the persistence of both where none is named.
const (
	usualKeepalivedPersistence = 6 * time.Minute
	usualIPVSADMPersistence    = 5 * time.Minute
)

// forwardPorts makes the ports of endpoints the service's where packets keep their ports.
func (d *draft) forwardPorts(s *service) {
	if !slices.ContainsFunc(s.settings, func(one setting) bool { return one.name == "forward" && one.value != "nat" }) {
		return
	}
	for i := range s.targets {
		t := &s.targets[i]
		if t.port != 0 && len(s.ports) == 1 && s.ports[0].value.(map[string]any)["port"] != int64(t.port) {
			d.note(t.line, "port %d is not used: without address translation, packets keep the port of the VIP", t.port)
		}
		t.port = 0
	}
}
