package config

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// findings collects a configuration's problems.
type findings []balancer.Problem

func (f *findings) add(severity balancer.Severity, field, format string, args ...any) {
	f.addAt(balancer.Origin{}, severity, field, format, args...)
}

// addAt adds a problem and its place in the configuration.
func (f *findings) addAt(at balancer.Origin, severity balancer.Severity, field, format string, args ...any) {
	*f = append(*f, balancer.Problem{Severity: severity, Origin: at, Field: field, Text: fmt.Sprintf(format, args...)})
}

func (f *findings) wrong(field, format string, args ...any) {
	f.add(balancer.SeverityError, field, format, args...)
}

// validate returns the problems that decoding can't detect, such as an invalid path or settings
// that contradict each other.
func (c *Config) validate() []balancer.Problem {
	var f findings
	c.checkPlaces(&f)
	c.checkInterfaces(&f)
	c.checkFleet(&f)
	if c.Direct.RealServer && !c.Addresses.Bind {
		f.wrong("direct.real_server", "has no effect with addresses.bind = false, because vipd then adds no VIPs: remove one of the two settings")
	}
	for i, server := range c.Resolver.Servers {
		if !isServer(server) {
			f.wrong(fmt.Sprintf("resolver.servers[%d]", i), `%q is not a DNS server's ADDRESS or ADDRESS:PORT, such as "192.168.1.53" or "[fd00::53]:5353"`, server)
		}
	}
	for name, command := range c.Hooks.Commands() {
		if command[0] == "" || strings.ContainsRune(strings.Join(command, ""), 0) {
			f.wrong("hooks."+name, "%q is not a program with its arguments, such as [\"/usr/local/bin/notify\", \"web\"]", command)
		}
	}
	timeouts := map[string]time.Duration{"ipvs.tcpfin_timeout": c.IPVS.TCPFinTimeout, "ipvs.udp_timeout": c.IPVS.UDPTimeout}
	if t := c.IPVS.TCPTimeout; t != nil {
		timeouts["ipvs.tcp_timeout"] = *t
	}
	for field, d := range timeouts {
		if why := notKernelTimeout(d); why != "" {
			f.wrong(field, "%s %s; use whole seconds from 1s to %s, or 0s to keep the kernel's value", d, why, longestTimeout)
		}
	}
	slices.SortStableFunc(f, func(a, b balancer.Problem) int { return cmp.Compare(a.Field, b.Field) })
	return f
}

// isServer reports whether text is ADDRESS or ADDRESS:PORT.
func isServer(text string) bool {
	_, err := netip.ParseAddr(text)
	at, withPort := netip.ParseAddrPort(text)
	return err == nil || withPort == nil && at.Port() != 0
}

// checkPlaces checks paths, and the addresses on which vipd listens or to which it sends.
func (c *Config) checkPlaces(f *findings) {
	for field, path := range map[string]string{"state_dir": c.StateDir, "run_dir": c.RunDir, "api.socket": c.API.Socket} {
		if path == "" {
			f.wrong(field, "is empty; write a path, or leave the field out for the default")
		}
	}
	// The kernel limits the path of a Unix socket to 107 bytes (sockaddr_un).
	if n := len(c.API.Socket); n > 107 {
		f.wrong("api.socket", "is %d bytes long; a Unix socket's path can have at most 107 bytes", n)
	}
	if c.API.HTTP != "" && !isListen(c.API.HTTP) {
		f.wrong("api.http", `%q is not ADDRESS:PORT, such as "127.0.0.1:9890"; "" turns it off`, c.API.HTTP)
	}
	if to := c.Tracing.OTLPEndpoint; to != "" {
		if u, err := url.Parse(to); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			f.wrong("tracing.otlp_endpoint", `%q is not a URL such as "http://127.0.0.1:4318"; "" turns it off`, to)
		}
	}
}

// checkInterfaces checks the settings that name network interfaces, including the fast path.
func (c *Config) checkInterfaces(f *findings) {
	if !isInterface(c.Addresses.Interface) {
		f.wrong("addresses.interface", notInterface, c.Addresses.Interface)
	}
	for i, name := range c.FastPath {
		field := fmt.Sprintf("fast_path[%d]", i)
		switch {
		case !isInterface(name):
			f.wrong(field, notInterface, name)
		case name == "lo":
			f.wrong(field, "is lo, which carries no packets to other hosts: list the devices of clients and endpoints")
		case name == "auto" && len(c.FastPath) > 1:
			f.wrong(field, `"auto" stands for all devices, so it must be the only name`)
		}
	}
	if c.FastPathHardware && len(c.FastPath) == 0 {
		f.add(balancer.SeverityWarning, "fast_path_hardware", "has no effect without fast_path")
	}
	for i, name := range c.Ownership.Interfaces {
		if !isInterface(name) {
			f.wrong(fmt.Sprintf("ownership.interfaces[%d]", i), notInterface, name)
		}
	}
}

// checkFleet checks the settings that need etcd, and the settings for the connection to etcd.
func (c *Config) checkFleet(f *findings) {
	if err := schema.CheckNode(c.Node); err != nil && c.Node != "" && c.Store.Kind == EtcdStore {
		f.wrong("node", "%s", err)
	}
	if len(c.Addresses.Allowed) == 0 && c.Store.Kind == EtcdStore {
		f.add(balancer.SeverityWarning, "addresses.allowed", "%s", Unbounded)
	}
	c.checkVRRP(f)
	if c.Store.Kind != EtcdStore && !reflect.DeepEqual(c.Etcd, Default().Etcd) {
		f.add(balancer.SeverityWarning, "etcd", "is used only by vipctl: vipd reads services from etcd only with store.kind = \"etcd\"")
	}
	if usual := "/" + strings.Trim(path.Clean(c.Etcd.Prefix), "/"); c.Etcd.Prefix != "" && c.Etcd.Prefix != usual {
		f.add(balancer.SeverityWarning, "etcd.prefix", "%q and the usual spelling %q are different prefixes: hosts that use different spellings don't share services", c.Etcd.Prefix, usual)
	}
	for _, err := range c.etcdErrors() {
		field, text, _ := strings.Cut(err.Error(), ": ")
		if text == "" || strings.Contains(field, " ") {
			f.wrong("etcd", "%s", err)
		} else {
			f.wrong("etcd."+field, "%s", text)
		}
	}
}

// Unbounded is the warning for a host that reads services from etcd without limiting their VIPs
// with addresses.allowed. It is not an error, because older configurations lack the setting.
const Unbounded = "is empty: anyone with access to services in etcd can claim almost any address, such as a name server's, for this host's " +
	"clients. Set it to the networks of your VIPs, such as [\"10.96.0.0/16\"]"

const notInterface = "%q is not an interface's name: it has 1 to 15 characters, none of them a space, / or :"

// isInterface reports whether name is a valid network interface name. The kernel allows at most 15
// bytes (IFNAMSIZ).
func isInterface(name string) bool {
	return len(name) > 0 && len(name) <= 15 && !strings.ContainsAny(name, "/ \t\n:")
}

// longestTimeout is the maximum timeout that IPVS accepts on every kernel: INT_MAX ticks, with at
// most 1000 ticks a second (ip_vs_set_timeout in the kernel's ip_vs_ctl.c).
const longestTimeout = math.MaxInt32 / 1000 * time.Second

// notKernelTimeout returns the reason why IPVS can't use the timeout d, or "". The kernel counts
// whole seconds. 0 is valid and leaves the kernel's timeout unchanged. Decoding already rejects
// negative values.
func notKernelTimeout(d time.Duration) string {
	switch {
	case d%time.Second != 0:
		return "is not a whole number of seconds, the kernel's unit"
	case d > longestTimeout:
		return "is longer than the kernel supports"
	}
	return ""
}

// Unowned returns the reason why this host can't own VIPs with hold = "one", or "".
func (c *Config) Unowned() string {
	switch {
	case !c.Ownership.Enabled && c.Store.Kind != EtcdStore:
		return `this host owns no VIPs: set ownership.enabled = true and write [ownership.vrrp.NAME], or leave the address to another program with addresses.bind = false`
	case !c.Ownership.Enabled:
		return "this host owns no VIPs: set ownership.enabled = true on the hosts that can own them"
	}
	return ""
}

// Unheld returns a problem for each VIP and pool with hold = "one" if this host can't own VIPs. It
// also returns the problems with the VIPs' VRRP groups.
func (c *Config) Unheld(vips snap.Map[netip.Addr, *balancer.VIP], pools snap.Map[balancer.Name, *balancer.Pool]) (problems []balancer.Problem) {
	why := c.Unowned()
	_, problems = c.VRRPGroups(vips)
	add := func(what string, origin balancer.Origin) {
		if why == "" || c.Direct.RealServer && !c.Ownership.Enabled { // other hosts are the gateways
			return
		}
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityError, Origin: origin.At("hold"), Field: what, Text: `hold = "one" is not in effect, and this host does not hold the VIP: ` + why,
		})
	}
	for addr, v := range vips.All() {
		if v.Hold == balancer.HoldOne {
			add(fmt.Sprintf("vips.%q.hold", addr), v.Origin)
		}
	}
	for name, p := range pools.All() {
		if p.Hold == balancer.HoldOne {
			add(fmt.Sprintf("pools.%s.hold", name), p.Origin)
		}
	}
	return problems
}

// etcdErrors returns the errors in the section [etcd].
func (c *Config) etcdErrors() []error {
	err := client.Config(c.Etcd).Check()
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return nil
}

func isListen(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n <= 65535
}
