package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/sockets"
	"vipd/dataplane/host"
	"vipd/dataplane/probe/command"
	"vipd/store/etcd/client"
)

// checkHost adds warnings for settings that this host does not support. They are not errors,
// because the definitions may be for another host.
func (d *localDefinitions) checkHost(frontends []*balancer.Frontend) {
	local := d.localAddresses()
	if d.main != nil {
		d.warnOf("", needsOfConfig(&d.config), d.main.Where)
		if isConfig(d.main) {
			for _, refused := range folder.Refused(d.config.RunDir, d.config.StateDir, d.config.API.Socket) {
				d.warnOf("", []need{{refused.Field, "vipd does not start here: " + refused.Err.Error()}}, d.main.Where)
			}
		}
	}
	d.checkListeners(frontends, local)
	interfaces, _ := doctor.ThisHost().Interfaces() // without a list of devices, no networks are known
	for name, s := range d.services.All() {
		d.checkBroadcasts(s, interfaces)
		for i, h := range s.Checks() {
			d.warnOf(name, needsOf(h, func(field string) string { return s.CheckField(i, field) }), s.Origin.At)
		}
		if s.Discover != nil && len(s.Discover.Exec) > 0 {
			d.warnOf(name, []need{{"discover.exec", lacksProgram(s.Discover.Exec[0])}}, s.Origin.At)
		}
		if s.AccessLog != nil {
			d.warnOf(name, []need{{"access_log", lacksLogFolder(*s.AccessLog)}}, s.Origin.At)
		}
	}
}

// warnOf adds a warning for each need that this host does not meet, unless the field already has a
// problem.
func (d *localDefinitions) warnOf(service balancer.Name, needs []need, at func(field string) balancer.Origin) {
	for _, n := range needs {
		refused := func(p balancer.Problem) bool { return p.Service == service && p.Field == n.field }
		if n.lacks != "" && !slices.ContainsFunc(d.problems, refused) {
			d.warn(at(n.field), service, n.field, n.lacks)
		}
	}
}

func (d *localDefinitions) warn(at balancer.Origin, service balancer.Name, field, text string) {
	d.problems = append(d.problems, balancer.Problem{Severity: balancer.SeverityWarning, Service: service, Origin: at, Field: field, Text: text})
}

// checkListeners adds warnings for frontends at the host's own addresses if another program listens
// there.
func (d *localDefinitions) checkListeners(frontends []*balancer.Frontend, local []netip.Addr) {
	frontends = slices.DeleteFunc(slices.Clone(frontends), func(f *balancer.Frontend) bool { return !slices.Contains(local, f.Key.Addr) })
	if len(frontends) == 0 {
		return
	}
	all, owners := sockets.All(), sockets.Owners()
	for _, f := range frontends {
		taken := slices.ContainsFunc(all, func(s sockets.Socket) bool {
			// A running vipd also listens, but only on individual addresses. Only root may see the
			// owner of a socket.
			own := owners[s.Inode] == "vipd" || owners[s.Inode] == "" && !s.At.Addr.IsUnspecified()
			return !own && s.Receives(f.Key)
		})
		s := d.services.At(f.Service)
		if !taken || s == nil {
			continue
		}
		claim := f.Key
		if f.NodePort {
			claim.Addr = netip.Addr{}
		}
		field := s.Claims()[claim]
		d.warn(s.Origin.At(field), s.Name, field, f.Key.String()+" is at this host's own address, and a program on this host listens there: "+
			"clients would reach the service instead of the program. Choose another port or address")
	}
}

// checkBroadcasts adds warnings for VIPs that are the broadcast address of one of this host's
// networks.
func (d *localDefinitions) checkBroadcasts(s *balancer.Service, interfaces []doctor.Interface) {
	for i, vip := range s.VIPs {
		for _, device := range interfaces {
			isBroadcast := func(network netip.Prefix) bool {
				last, ok := host.Broadcast(network)
				return ok && last == vip
			}
			if at := slices.IndexFunc(device.Networks, isBroadcast); at >= 0 {
				field := fmt.Sprintf("vips[%d]", i)
				d.warn(s.Origin.At(field), s.Name, field, fmt.Sprintf("%s is the broadcast address of %s, one of this host's networks, so it is not served here: choose another address", vip, device.Networks[at]))
				break
			}
		}
	}
}

// need is a requirement of a field. lacks describes what this host is missing, or is "" if nothing
// is missing.
type need struct{ field, lacks string }

func needsOfConfig(c *config.Config) []need {
	needs := []need{
		{"addresses.interface", lacksInterface(c.Addresses)}, {"fast_path", lacksFlowtable(c)},
		{"etcd", client.Config(c.Etcd).Unusable()}, {"etcd.password_file", lacksFile(c.Etcd.PasswordFile)}, {"etcd.ca_file", lacksFile(c.Etcd.CAFile)},
		{"etcd.cert_file", cmp.Or(lacksFile(c.Etcd.CertFile), client.Config(c.Etcd).Expiry(time.Now()))}, {"etcd.key_file", lacksFile(c.Etcd.KeyFile)},
		{"hooks.user", lacksUser(c.Hooks.User)}, {"userspace.access_log", lacksLogFolder(c.Userspace.AccessLog)},
	}
	for name, command := range c.Hooks.Commands() {
		needs = append(needs, need{"hooks." + name, lacksProgram(command[0])})
	}
	return needs
}

// lacksFlowtable describes the problem if fast_path is set in a mode without flowtables. Otherwise
// it returns "".
func lacksFlowtable(c *config.Config) string {
	if len(c.FastPath) > 0 && (c.Mode == config.UserspaceMode || c.Mode == config.IPVSMode) {
		return fmt.Sprintf(`has no effect in %s mode: it needs mode = "nftables" or "iptables"`, c.Mode)
	}
	return ""
}

// lacksInterface describes the problem if the interface for VIPs is missing and vipd would not
// create it. Otherwise it returns "".
func lacksInterface(a config.Addresses) string {
	if !a.Bind || strings.HasPrefix(a.Interface, "vipd") {
		return ""
	}
	if _, err := net.InterfaceByName(a.Interface); err != nil {
		return "there is no interface " + a.Interface + " on this host, and vipd creates only interfaces whose name begins with vipd"
	}
	return ""
}

// needsOf returns a check's needs. The function at returns the full path of one of the check's
// fields.
func needsOf(h *balancer.Health, at func(field string) string) []need {
	needs := []need{
		{at("ca_file"), lacksFile(h.CAFile)}, {at("cert_file"), lacksFile(h.CertFile)}, {at("key_file"), lacksFile(h.KeyFile)},
	}
	if h.Type == balancer.ExecHealth {
		needs = append(needs, need{at("command"), lacksProgram(h.Command[0])}, need{at("user"), lacksUser(h.User)})
	}
	return needs
}

func lacksFile(path string) string {
	if path == "" {
		return ""
	}
	// A file that this user may not see is not reported, because vipd may be allowed to read it.
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no file " + path + " on this host"
	case err == nil && !info.Mode().IsRegular():
		return path + " is not a regular file on this host"
	}
	return ""
}

// lacksLogFolder describes the missing directory of an access log. It returns "" if the directory
// exists. vipd creates the log, but not its directory.
func lacksLogFolder(log string) string {
	if log == "" || log == balancer.JournalLog {
		return ""
	}
	if info, err := os.Stat(filepath.Dir(log)); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return "the folder " + filepath.Dir(log) + " for the access log does not exist on this host, so log lines would be lost"
	}
	return ""
}

func lacksProgram(name string) string {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		// A program that this user may not see is not reported, because vipd may be allowed to run
		// it.
		if err := command.Trusted(path); err != nil && !errors.Is(err, fs.ErrPermission) {
			return "vipd does not run " + name + ": " + err.Error()
		}
	case errors.Is(err, exec.ErrNotFound):
		return "there is no program " + name + " in PATH on this host"
	case errors.Is(err, fs.ErrNotExist):
		return "there is no program " + name + " on this host"
	case errors.Is(err, fs.ErrPermission):
		return name + " is not executable on this host"
	}
	return ""
}

func lacksUser(name string) string {
	if name == "" {
		return ""
	}
	_, err := user.Lookup(name)
	if _, unknown := errors.AsType[user.UnknownUserError](err); unknown {
		return "there is no user " + name + " on this host"
	}
	return ""
}
