package convert

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
)

// ipvsadm is an output of "ipvsadm -Sn" while it is read.
type ipvsadm struct {
	*draft
	// services are the virtual services by what names them, such as "-t 10.96.0.10:80"; nil for those that vipd can't serve.
	services map[string]*service
}

// readIPVSADM reads what "ipvsadm -Sn" prints, or a script of ipvsadm commands.
func readIPVSADM(d *draft) error {
	r := &ipvsadm{draft: d, services: map[string]*service{}}
	for i, text := range d.lines {
		words := strings.Fields(text)
		for len(words) > 0 && (words[0] == "sudo" || words[0] == "ipvsadm" || strings.HasSuffix(words[0], "/ipvsadm")) {
			words = words[1:]
		}
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := r.spend(i+1, 1); err != nil {
			return err
		}
		if err := r.command(i+1, words); err != nil {
			return err
		}
	}
	for _, s := range d.services {
		s.settings = defaulted(s.settings, "scheduler", "wlc")
		d.forwardPorts(s)
	}
	return nil
}

func (r *ipvsadm) command(line int, words []string) error {
	o, err := r.options(line, words)
	if err != nil {
		return err
	}
	switch o.command {
	case "-A":
		return r.add(line, o)
	case "-a":
		return r.server(line, o)
	case "":
		return r.errorf(line, "%q is not a command of ipvsadm; give what \"ipvsadm -Sn\" prints", r.lineText(line))
	}
	r.note(line, "no command that adds a service or server; vipd needs none of it")
	return nil
}

// options are the options of a line, by their short names.
type options struct {
	command string
	// kind and place name the service: -t, -u, -f or --sctp-service, and what follows it.
	kind, place string
	values      map[string]string
}

// long are the short names of ipvsadm's long options.
func long() map[string]string {
	return map[string]string{
		"--add-service": "-A", "--edit-service": "-E", "--delete-service": "-D", "--clear": "-C", "--restore": "-R", "--save": "-S",
		"--add-server": "-a", "--edit-server": "-e", "--delete-server": "-d", "--set": "--set", "--start-daemon": "--start-daemon",
		"--tcp-service": "-t", "--udp-service": "-u", "--fwmark-service": "-f", "--scheduler": "-s", "--persistent": "-p", "--netmask": "-M",
		"--real-server": "-r", "--weight": "-w", "--gatewaying": "-g", "--ipip": "-i", "--masquerading": "-m", "--u-threshold": "-x",
		"--l-threshold": "-y", "--ipv6": "-6", "--ops": "-o", "--sched-flags": "-b", "--pe": "--pe",
	}
}

// options splits a line into options and their values.
func (r *ipvsadm) options(line int, words []string) (*options, error) {
	o := &options{values: map[string]string{}}
	names := long()
	for i := 0; i < len(words); i++ {
		name, value, inline := strings.Cut(words[i], "=")
		if short, known := names[name]; known {
			name = short
		}
		next := func() string {
			if !inline && i+1 < len(words) {
				i++
				value = words[i]
			}
			return value
		}
		switch name {
		case "-A", "-a", "-E", "-e", "-D", "-d", "-C", "-R", "-S", "--set", "--start-daemon":
			o.command = name
			if name == "--set" || name == "--start-daemon" {
				return o, nil
			}
		case "-t", "-u", "-f", "--sctp-service":
			o.kind, o.place = name, next()
		case "-g", "-i", "-m", "-6", "-o", "-n":
			o.values[name] = "yes"
		case "-p":
			o.values[name] = ""
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				o.values[name] = next()
			}
		case "-s", "-M", "-r", "-w", "-x", "-y", "-b", "--pe", "--tun-type", "--tun-port":
			o.values[name] = next()
		case "--tun-nocsum", "--tun-csum", "--tun-remcsum":
			o.values["--tun-type"] = name
		default:
			return nil, r.errorf(line, "ipvsadm has no option %q; give what \"ipvsadm -Sn\" prints", plain(words[i]))
		}
	}
	return o, nil
}

// addrPort reads ADDRESS:PORT as ipvsadm prints it; port 0 is every port.
func (r *ipvsadm) addrPort(line int, text string) (netip.Addr, uint16, error) {
	host, portText := splitPort(text)
	addr, err := parseAddr(host)
	port := uint64(0)
	if err == nil && portText != "" {
		port, err = strconv.ParseUint(portText, 10, 16)
	}
	if err != nil {
		return addr, 0, r.errorf(line, "%q is not ADDRESS:PORT; print numbers with \"ipvsadm -Sn\"", plain(text))
	}
	return addr, uint16(port), nil
}

// add reads a virtual service.
func (r *ipvsadm) add(line int, o *options) error {
	if o.kind == "-f" {
		r.note(line, noMarks)
		r.services[o.kind+" "+o.place] = nil
		return nil
	}
	addr, port, err := r.addrPort(line, o.place)
	if err != nil {
		return err
	}
	if port == 0 {
		r.note(line, noPorts)
		r.services[o.kind+" "+o.place] = nil
		return nil
	}
	protocol := map[string]balancer.Protocol{"-t": balancer.TCP, "-u": balancer.UDP, "--sctp-service": balancer.SCTP}[o.kind]
	name := "vs-" + addr.String() + "-" + strconv.Itoa(int(port))
	if protocol != balancer.TCP {
		name += "-" + string(protocol)
	}
	s := r.spread(line, name, []listener{{addr, port, protocol, line}})[0]
	r.services[o.kind+" "+o.place] = s
	if name, given := o.values["-s"]; given {
		r.scheduler(s, line, name)
	}
	if text, given := o.values["-p"]; given {
		timeout, err := parseSpan(text, time.Second)
		if err != nil || timeout == 0 {
			timeout = usualIPVSADMPersistence
		}
		s.persistent(line, timeout)
	}
	if mask := o.values["-M"]; mask != "" && mask != "255.255.255.255" && mask != "128" {
		r.granularity(line)
	}
	if o.values["-b"] != "" {
		r.note(line, "flags of schedulers (-b %s) have no equivalent", o.values["-b"])
	}
	if o.values["-o"] != "" {
		r.note(line, "nearest to -o is a short udp_timeout in [ipvs]: vipd keeps flows of UDP on their endpoint")
	}
	if o.values["--pe"] != "" {
		r.note(line, "affinity is by the client's address; --pe %s has no equivalent", o.values["--pe"])
	}
	return nil
}

// server reads a real server.
func (r *ipvsadm) server(line int, o *options) error {
	s, known := r.services[o.kind+" "+o.place]
	if !known {
		return r.errorf(line, "no line above adds the service %s %s; give all that \"ipvsadm -Sn\" prints", o.kind, plain(o.place))
	}
	if s == nil {
		r.note(line, "left out with its service")
		return nil
	}
	addr, port, err := r.addrPort(line, o.values["-r"])
	if err != nil {
		return err
	}
	fields := s.endpoint(line, addr, port)
	for option, field := range map[string]string{"-w": "weight", "-x": "max_connections"} {
		if text, given := o.values[option]; given {
			r.amount(fields, line, option, field, text)
		}
	}
	if y := o.values["-y"]; y != "" && y != "0" {
		r.note(line, "vipd uses an endpoint again as soon as it is below max_connections; -y has no equivalent")
	}
	if o.values["--tun-type"] != "" && o.values["--tun-type"] != "ipip" {
		r.note(line, "tunnels are IP in IP; other types have no equivalent")
	}
	r.forward(s, line, o)
	return nil
}

// forward sets how packets reach the endpoints: -g, which is ipvsadm's default, -i or -m.
func (r *ipvsadm) forward(s *service, line int, o *options) {
	way := "dr"
	if o.values["-m"] != "" {
		way = "nat"
	} else if o.values["-i"] != "" {
		way = "tunnel"
	}
	if first := find(s.settings, "forward"); first == nil {
		s.set(line, "forward", way)
	} else if first.value != way {
		r.note(line, "forward is the same for all endpoints of a service; that of line %d is used", first.line)
	}
}
