package convert

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
)

// ipvsadm is the output of "ipvsadm -Sn", or a script, that is being converted.
type ipvsadm struct {
	*draft
	shell shell
	// services maps the words that name a virtual service, such as "-t 10.96.0.10:80", to the
	// service.
	services map[string]*ipvsService
	all      []*ipvsService
	// doubt is the number of a line that runs ipvsadm in a way that can't be converted, or 0 if
	// there is none.
	doubt int
}

// ipvsService is a virtual service. ways holds its endpoints' forwarding methods, and indexes their
// indexes.
type ipvsService struct {
	*service
	ways    []string
	indexes map[netip.AddrPort]int
	removed bool
}

// readIPVSADM reads the output of "ipvsadm -Sn", or a script of ipvsadm commands.
func readIPVSADM(d *draft) error {
	r := &ipvsadm{draft: d, shell: shell{}, services: map[string]*ipvsService{}}
	if len(d.lines) > 0 && strings.HasPrefix(d.lines[0], "IP Virtual Server version") {
		d.empty = "it is the output of \"ipvsadm -L\": convert the output of \"ipvsadm -Sn\" instead"
		return nil
	}
	for i, text := range d.lines {
		words, kind := r.shell.read(text)
		switch kind {
		case shellCommand:
			r.command(i+1, words)
		case shellOther:
			r.note(i+1, "left out: it is not an ipvsadm command")
		case shellHidden:
			r.doubt = i + 1
			r.note(i+1, "left out: vipctl does not run shell programs; convert the output of \"ipvsadm -Sn\"")
		}
	}
	for _, s := range r.all {
		if !s.removed {
			r.finish(s)
		}
	}
	r.draft.services = nil
	for _, s := range r.all {
		if !s.removed {
			r.draft.services = append(r.draft.services, s.service)
		}
	}
	return nil
}

// finish sets the fields that depend on several lines.
func (r *ipvsadm) finish(s *ipvsService) {
	s.settings = defaulted(s.settings, "scheduler", "wlc")
	if r.doubt > 0 {
		r.disable(s.service, r.doubt, "the line might change the service: convert the output of \"ipvsadm -Sn\"")
	}
	for i, way := range s.ways {
		if way != s.ways[0] {
			r.disable(s.service, s.endpoints[i].line, "forward is the same for all endpoints of a service: write a service for each forwarding method")
		}
	}
	if len(s.ways) > 0 {
		s.set(s.endpoints[0].line, "forward", s.ways[0])
	}
	r.forwardPorts(s.service)
}

// command converts an ipvsadm command.
func (r *ipvsadm) command(line int, words []string) {
	o := readOptions(words)
	s := r.services[o.key()]
	if s == nil && o.command != "" && strings.Contains("-E -D -a -e -d", o.command) {
		r.note(line, "left out: no line above adds the service %s", plain(o.key()))
		return
	}
	switch o.command {
	case "-A":
		s = r.add(line, o)
	case "-E":
		r.settings(s, line, o)
	case "-a", "-e":
		r.server(s, line, o)
	case "-d":
		r.remove(s, line, o)
	case "-D":
		s.removed = true
		delete(r.services, o.key())
	case "-C":
		for _, s := range r.services {
			s.removed = true
		}
		clear(r.services)
	case "-R", "-S":
		r.note(line, "left out: convert the lines that this command reads or writes")
	case "--set":
		r.note(line, "the nearest settings are tcp_timeout, tcpfin_timeout and udp_timeout in [ipvs]")
	case "--start-daemon", "--stop-daemon":
		r.note(line, "vipd instances share no connections; the nearest setting is scheduler = \"mh\", which selects the same endpoint for a client on each instance")
	default:
		r.note(line, "left out: it adds neither a service nor a server")
	}
	if s != nil && o.unknown != "" {
		r.disable(s.service, line, "ipvsadm has no option %q", plain(o.unknown))
	}
}

// addrPort parses ADDRESS:PORT as ipvsadm prints it. Port 0 means every port.
func (r *ipvsadm) addrPort(line int, text string) (netip.Addr, uint16, error) {
	host, portText := splitPort(text)
	addr, err := parseAddr(host)
	port := uint64(0)
	if err == nil && portText != "" {
		port, err = strconv.ParseUint(portText, 10, 16)
	}
	if err != nil {
		return addr, 0, r.errorf(line, "%q is not ADDRESS:PORT; use the output of \"ipvsadm -Sn\", which has numeric addresses and ports", plain(text))
	}
	return addr, uint16(port), nil
}

// add adds a virtual service.
func (r *ipvsadm) add(line int, o *options) *ipvsService {
	protocol := map[string]balancer.Protocol{"-t": balancer.TCP, "-u": balancer.UDP, "--sctp-service": balancer.SCTP}[o.kind]
	addr, port, err := r.addrPort(line, o.place)
	name := "vs-" + o.place
	if err == nil {
		name = "vs-" + addr.String() + "-" + strconv.Itoa(int(port))
	}
	if protocol != balancer.TCP {
		name += "-" + string(protocol)
	}
	var failed []error
	var listeners []listener
	switch {
	case o.kind == "-f":
		name, failed = "vs-fwmark-"+o.place, []error{r.errorf(line, noMarks)}
	case o.kind == "":
		failed = []error{r.errorf(line, "the command has no service")}
	case err != nil:
		failed = []error{err}
	case port == 0:
		failed = []error{r.errorf(line, noPorts)}
	default:
		listeners = []listener{{addr, port, protocol, line}}
	}
	s := &ipvsService{service: r.servicesAt(line, name, listeners, failed)[0], indexes: map[netip.AddrPort]int{}}
	r.services[o.key()], r.all = s, append(r.all, s)
	r.settings(s, line, o)
	return s
}

// settings converts a virtual service's settings, which replace its earlier settings.
func (r *ipvsadm) settings(s *ipvsService, line int, o *options) {
	s.settings = nil
	if name, given := o.values["-s"]; given {
		r.scheduler(s.service, line, name)
	}
	if text, given := o.values["-p"]; given {
		timeout := usualIPVSADMPersistence
		if t, err := parseSpan(text, time.Second); err == nil && t > 0 {
			timeout = t
		}
		s.persistent(line, timeout)
	}
	if mask := o.values["-M"]; mask != "" && mask != "255.255.255.255" && mask != "128" {
		r.granularity(line)
	}
	if o.values["-b"] != "" {
		r.note(line, "scheduler flags (-b %s) have no equivalent", plain(o.values["-b"]))
	}
	if o.values["-o"] != "" {
		r.note(line, "the nearest equivalent of -o is a short udp_timeout in [ipvs]: vipd keeps UDP flows on their endpoint")
	}
	if o.values["--pe"] != "" {
		r.note(line, "affinity uses the client's address; --pe %s has no equivalent", plain(o.values["--pe"]))
	}
}

// server adds or edits a real server.
func (r *ipvsadm) server(s *ipvsService, line int, o *options) {
	addr, port, err := r.addrPort(line, o.values["-r"])
	if err != nil {
		_, text := placed(line, err)
		r.note(line, "left out: %s", text)
		return
	}
	i, exists := s.indexes[netip.AddrPortFrom(addr, port)]
	if exists == (o.command == "-a") {
		r.note(line, "left out: ipvsadm refuses to add a server twice, and to edit a server that was not added")
		return
	}
	if !exists {
		i = len(s.endpoints)
		s.indexes[netip.AddrPortFrom(addr, port)] = i
		s.endpoint(line, addr.String(), port)
		s.ways = append(s.ways, "")
	}
	s.endpoints[i] = listElement{value: map[string]any{"address": addr.String()}, port: port, line: line}
	for _, option := range []struct{ word, field string }{{"-w", "weight"}, {"-x", "max_connections"}} {
		if text, given := o.values[option.word]; given {
			r.amount(s.endpoints[i].fields(), line, option.word, option.field, text)
		}
	}
	if y := o.values["-y"]; y != "" && y != "0" {
		r.note(line, "vipd uses an endpoint again as soon as it is below max_connections; -y has no equivalent")
	}
	if o.values["--tun-type"] != "" && o.values["--tun-type"] != "ipip" {
		r.note(line, "vipd's tunnels use IP in IP; other types have no equivalent")
	}
	s.ways[i] = "dr" // ipvsadm's default
	if o.values["-m"] != "" {
		s.ways[i] = "nat"
	} else if o.values["-i"] != "" {
		s.ways[i] = "tunnel"
	}
}

// remove removes the real server that a command deletes.
func (r *ipvsadm) remove(s *ipvsService, line int, o *options) {
	addr, port, err := r.addrPort(line, o.values["-r"])
	i, exists := s.indexes[netip.AddrPortFrom(addr, port)]
	if err != nil || !exists {
		r.note(line, "left out: no line above adds the server")
		return
	}
	s.endpoints, s.ways = slices.Delete(s.endpoints, i, i+1), slices.Delete(s.ways, i, i+1)
	clear(s.indexes)
	for i, e := range s.endpoints {
		s.indexes[netip.AddrPortFrom(e.address(), e.port)] = i
	}
}
