package convert

import (
	"slices"
	"strings"
)

// options holds an ipvsadm command's options by their short names.
type options struct {
	command string
	// kind and place name the service. kind is -t, -u, -f or --sctp-service, and place is the word
	// that follows kind.
	kind, place string
	values      map[string]string
	// unknown is an argument that was not recognized as an option.
	unknown string
}

// key returns the words that name the service.
func (o *options) key() string { return o.kind + " " + o.place }

// long maps ipvsadm's long option names to the short names.
func long() map[string]string {
	return map[string]string{
		"--add-service": "-A", "--edit-service": "-E", "--delete-service": "-D", "--clear": "-C", "--restore": "-R", "--save": "-S",
		"--add-server": "-a", "--edit-server": "-e", "--delete-server": "-d", "--set": "--set", "--start-daemon": "--start-daemon",
		"--tcp-service": "-t", "--udp-service": "-u", "--fwmark-service": "-f", "--scheduler": "-s", "--persistent": "-p", "--netmask": "-M",
		"--real-server": "-r", "--weight": "-w", "--gatewaying": "-g", "--ipip": "-i", "--masquerading": "-m", "--u-threshold": "-x",
		"--l-threshold": "-y", "--ipv6": "-6", "--ops": "-o", "--sched-flags": "-b", "--pe": "--pe",
	}
}

// readOptions splits a command into options and their values.
func readOptions(words []string) *options {
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
		isOption := func(list string) bool { return slices.Contains(strings.Fields(list), name) }
		switch {
		case isOption("--set --start-daemon --stop-daemon -L -l --list -Z --zero"):
			o.command = name
			return o // the remaining words are ignored
		case isOption("-A -a -E -e -D -d -C -R -S"):
			o.command = name
		case isOption("-t -u -f --sctp-service"):
			o.kind, o.place = name, next()
		case isOption("-g -i -m -6 -o -n"):
			o.values[name] = "yes"
		case name == "-p":
			o.values[name] = ""
			if inline || i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				o.values[name] = next()
			}
		case isOption("-s -M -r -w -x -y -b --pe --tun-type --tun-port"):
			o.values[name] = next()
		case isOption("--tun-nocsum --tun-csum --tun-remcsum"):
			o.values["--tun-type"] = name
		default:
			o.unknown = words[i]
		}
	}
	return o
}
