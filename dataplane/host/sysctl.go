package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"vipd/balancer"
)

// sysctls reads and writes sysctls by names such as net.ipv4.conf.all.arp_ignore.
type sysctls interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// procSysctls accesses the sysctls of the calling thread's network namespace.
type procSysctls struct{}

// path returns the file of a sysctl. As in sysctl(8), a dot within a component, such as in the name
// of a VLAN device, is written as a slash. A name that leads out of /proc/sys is an error.
func (procSysctls) path(name string) (string, error) {
	path := strings.NewReplacer(".", "/", "/", ".").Replace(name)
	if path != filepath.Clean(path) || !filepath.IsLocal(path) {
		return "", fmt.Errorf("%q is not the name of a sysctl", name)
	}
	return filepath.Join("/proc/sys", path), nil
}

// disableIPv6 returns the sysctl that disables IPv6 on a device.
func disableIPv6(device string) string {
	return "net.ipv6.conf." + strings.ReplaceAll(device, ".", "/") + ".disable_ipv6"
}

// forceForwarding6 returns the sysctl that makes a device forward IPv6 packets even if the
// forwarding sysctl (forward6) is 0. It exists since Linux 6.17.
func forceForwarding6(device string) string {
	return "net.ipv6.conf." + strings.ReplaceAll(device, ".", "/") + ".force_forwarding"
}

// Read returns the value without surrounding white space.
func (p procSysctls) Read(name string) (string, error) {
	path, err := p.path(name)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(text)), nil
}

// Write sets the value.
func (p procSysctls) Write(name, value string) error {
	path, err := p.path(name)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(value), 0)
}

// minimum is the minimum required value of a sysctl. loss describes the effect of a lower value.
type minimum struct {
	name  string
	value int
	loss  string
	// exactly reports whether higher values are also wrong.
	exactly bool
}

func (m minimum) met(value int) bool { return value == m.value || value > m.value && !m.exactly }

// strictARP returns the sysctls that prevent a host from answering ARP requests for addresses on lo
// or a dummy device, and from using such addresses as the source of its own requests. The kernel
// uses the larger value of the device and of "all".
func strictARP() []minimum {
	return []minimum{
		{name: arpIgnore, value: 1, loss: "this host answers ARP requests for VIPs that it holds, so clients on its link might reach this host instead of the VIPs' owner"},
		{name: "net.ipv4.conf.all.arp_announce", value: 2, loss: "this host might announce VIPs that it holds in its ARP requests"},
	}
}

// arpIgnore is the sysctl that disables ARP answers for addresses on lo.
const arpIgnore = "net.ipv4.conf.all.arp_ignore"

const (
	forward4 = "net.ipv4.ip_forward"
	forward6 = "net.ipv6.conf.all.forwarding"
	// liberal makes conntrack accept TCP segments outside the window, for both families. Otherwise
	// such segments are invalid, and NAT does not translate invalid packets. Dropping such segments
	// would need a rule for every forwarded packet and a set of all endpoints. It would also break
	// connections for which conntrack has missed more than a window. For example, a connection may
	// return to a host that still has an entry for it. The endpoints check the window anyway.
	liberal = "net.netfilter.nf_conntrack_tcp_be_liberal"
	// accounting makes conntrack count the packets and bytes of new connections. The kernel enables
	// it itself with the first rule that reads these counts.
	accounting = "net.netfilter.nf_conntrack_acct"
)

// virtualServers returns the sysctls for the kernel's virtual servers. All of these sysctls also
// affect foreign virtual servers. roams reports whether connections may move here from other hosts.
func virtualServers(release string, roams bool) []minimum {
	wanted := []minimum{
		{name: "net.ipv4.vs.conntrack", value: 1, loss: "connections through virtual servers are not tracked: snat, node ports and hairpin clients fail, and firewalls with a DROP policy block connections"},
		{name: "net.ipv4.vs.expire_nodest_conn", value: 1, loss: "connections to removed endpoints hang until the client gives up"},
		{name: "net.ipv4.vs.expire_quiescent_template", value: 1, loss: "draining endpoints still get new connections from clients with affinity"},
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil && (major == 4 && minor >= 1 || major == 5 && minor <= 8) {
		// If connection tracking is on, these kernels drop the first packet of a client that reuses
		// a port.
		wanted = append(wanted, minimum{name: "net.ipv4.vs.conn_reuse_mode", exactly: true, loss: "a client that reuses a source port waits a second for its connection"})
	}
	if roams {
		wanted = append(wanted, minimum{name: "net.ipv4.vs.sloppy_tcp", value: 1, loss: "open TCP connections that move here from another host are reset"})
	}
	return wanted
}

// raise raises the sysctls to their minima, and records their old values first. It returns failures
// as problems. If leave is not empty, raise changes nothing for that reason, and only reports wrong
// values as problems. It calls again for each sysctl that vipd had to raise a second time.
func raise(s sysctls, l *ledger, leave string, wanted []minimum, again func(what string)) ([]balancer.Problem, error) {
	var problems []balancer.Problem
	for _, m := range wanted {
		text, err := s.Read(m.name)
		if err != nil {
			problems = append(problems, sysctlProblem(m, err.Error()))
			continue
		}
		value, err := strconv.Atoi(text)
		if err == nil && m.met(value) {
			continue
		}
		if leave != "" {
			problems = append(problems, sysctlProblem(m, fmt.Sprintf("%s is %s, and %s", m.name, text, leave)))
			continue
		}
		_, before := l.Sysctls[m.name]
		if err = s.Write(m.name, text); err == nil { // tests whether the sysctl is writable; if it is not, the ledger must not change at each check
			// If another program has changed the sysctl, Cleanup must restore that program's value.
			l.setSysctl(m.name, sysctlRecord{Old: text, Set: strconv.Itoa(m.value)})
			if err := l.save(); err != nil {
				l.dropSysctl(m.name)
				return problems, err
			}
			err = s.Write(m.name, strconv.Itoa(m.value))
		}
		if err != nil {
			l.dropSysctl(m.name) // vipd has not changed the sysctl
			problems = append(problems, sysctlProblem(m, err.Error()))
		} else if before {
			again(fmt.Sprintf("sysctl %s was %s", m.name, text))
		}
	}
	return problems, nil
}

func sysctlProblem(m minimum, reason string) balancer.Problem {
	return balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf("%s: %s: sysctl -w %s=%d", m.loss, reason, m.name, m.value)}
}

// restoreSysctls restores the old values of sysctls. It keeps values that another program has set
// since.
func restoreSysctls(s sysctls, l *ledger, which []string) error {
	var all []error
	for _, name := range which {
		r, ok := l.Sysctls[name]
		if !ok {
			continue
		}
		now, err := s.Read(name)
		if err == nil && now == r.Set && now != r.Old {
			err = s.Write(name, r.Old)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			all = append(all, fmt.Errorf("restoring sysctl %s: %w", name, err))
			continue
		}
		l.dropSysctl(name)
	}
	return errors.Join(all...)
}
