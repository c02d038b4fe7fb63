package doctor

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/config"
)

// checkIPVS looks at the kernel's virtual servers: whether they can be had, how they are set, and who else uses them.
func checkIPVS(_ context.Context, v *visit) {
	if v.wantsIPVS() {
		v.schedulers()
		v.connectionTable()
	}
	v.foreignServers()
	v.otherOwners()
}

// wantsIPVS reports whether vipd uses IPVS, or would where it works.
func (v *visit) wantsIPVS() bool {
	return v.Status != nil && v.Status.Mode.InUse == string(config.IPVSMode) ||
		v.Config.Mode == config.IPVSMode || v.Config.Mode == config.AutoMode
}

// usesIPVS reports whether the mode in use is IPVS, or would be where all modes work.
func (v *visit) usesIPVS() bool { return v.mode().Name == config.IPVSMode }

// lack says why the kernel has no IPVS for this process, as far as that can be seen, and what mends it.
func (v *visit) lack() (why, mend string) {
	const netAdmin, sysModule = 12, 16 // CAP_NET_ADMIN, CAP_SYS_MODULE of the kernel's include/uapi/linux/capability.h
	const outside = "modprobe ip_vs  # on the host of this container"
	switch {
	case v.nested():
		return "this process is in a user namespace, where the kernel lets no process change virtual servers",
			"sudo vipctl doctor  # on the host itself, or in a container without a user namespace"
	case !v.capable(netAdmin):
		return "this process may not change the network (CAP_NET_ADMIN)", "docker run --cap-add NET_ADMIN --network host ...  # as for this container"
	case v.module("ip_vs") == loaded:
		return "", ""
	case v.module("ip_vs") == loadable && !v.capable(sysModule):
		return "the module ip_vs is not loaded, and this process may not load modules (CAP_SYS_MODULE)", outside
	case v.module("ip_vs") == loadable:
		return "the module ip_vs is not loaded", "modprobe ip_vs"
	case v.contained():
		return "the module ip_vs is not loaded, and this container sees none to load", outside
	}
	return "this kernel comes without the module ip_vs", v.packaged("ip_vs")
}

// contained reports whether this is a container, by the marks that those who make them leave.
func (v *visit) contained() bool {
	return slices.ContainsFunc([]string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"}, func(mark string) bool {
		_, err := v.ReadFile(mark)
		return err == nil
	})
}

// nested reports whether this process is in a user namespace that is not the host's.
func (v *visit) nested() bool {
	ids := strings.Fields(v.text("/proc/self/uid_map"))
	return len(ids) > 0 && !slices.Equal(ids, []string{"0", "0", "4294967295"})
}

// capable reports whether this process has a capability, by its number.
func (v *visit) capable(number int) bool {
	for line := range strings.Lines(v.text("/proc/self/status")) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err != nil || bits&(1<<number) != 0
		}
	}
	return true
}

// packaged is the command that brings a module which this kernel comes without, or that shows more.
func (v *visit) packaged(module string) string {
	release := v.text("/proc/sys/kernel/osrelease")
	system := v.text("/etc/os-release")
	is := func(id string) bool {
		return slices.ContainsFunc(strings.Split(system, "\n"), func(line string) bool {
			name, value, _ := strings.Cut(line, "=")
			return (name == "ID" || name == "ID_LIKE") && slices.Contains(strings.Fields(strings.Trim(value, `"`)), id)
		})
	}
	switch {
	case is("ubuntu"):
		return "apt-get install linux-modules-extra-" + release
	case is("debian"):
		return "apt-get install linux-image-" + runtime.GOARCH + "  # and boot it"
	case is("fedora"), is("rhel"):
		return "dnf provides '*/" + module + ".ko*'"
	}
	return "grep CONFIG_IP_VS /boot/config-" + release
}

// schedulers looks for the modules of the schedulers that services want.
func (v *visit) schedulers() {
	if v.module("ip_vs") == unseen || v.text("/lib/modules/"+v.text("/proc/sys/kernel/osrelease")+"/modules.dep") == "" {
		return // nothing is known of modules; the trial has said whether IPVS is there
	}
	wanted := map[string]bool{}
	for _, f := range v.Frontends {
		switch f.Scheduler {
		case "":
		case balancer.Random:
			wanted["ip_vs_wrr"] = true // the nearest that IPVS has
		default:
			wanted["ip_vs_"+string(f.Scheduler)] = true
		}
	}
	var missing, there []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if v.module(name) == unseen {
			missing = append(missing, name)
		} else {
			there = append(there, name)
		}
	}
	for _, name := range missing {
		v.add(warning(fmt.Sprintf("the kernel comes without the scheduler %s, which services want", name),
			"ipvs mode serves them by the nearest that is there", v.packaged(name)))
	}
	if len(there) > 0 {
		v.add(fine("the kernel has the schedulers that services want: " + strings.Join(there, ", ")))
	}
}

// connectionTable looks at the number of buckets in which IPVS finds connections.
func (v *visit) connectionTable() {
	bits, err := strconv.Atoi(v.text("/sys/module/ip_vs/parameters/conn_tab_bits"))
	if err != nil {
		return // not loaded, or built in
	}
	f := fine(fmt.Sprintf("IPVS finds connections in a table of %d buckets", 1<<bits))
	if bits < 16 {
		f.Level = Note
		f.Why = "with more connections than that, each packet searches a longer list: 100,000 connections need some 2^17. The size is fixed while ip_vs is loaded"
		f.Mend = "echo 'options ip_vs conn_tab_bits=20' >/etc/modprobe.d/vipd.conf  # then load ip_vs anew, or restart the host"
	}
	v.add(f)
}

// foreignServers is about virtual servers that vipd did not make, and never touches.
func (v *visit) foreignServers() {
	foreign, err := v.foreign()
	if err != nil {
		v.add(warning("vipd's virtual servers can't be told from others: "+oneLine(err), "", "sudo vipctl doctor"))
		return
	}
	if len(foreign) == 0 {
		return
	}
	wanted := map[balancer.Key]bool{}
	for _, f := range v.Frontends {
		wanted[f.Key] = true
	}
	var inTheWay, beside, other []string
	for _, s := range foreign {
		switch {
		case wanted[s.key]:
			inTheWay = append(inTheWay, s.String())
		case s.mark == "" && v.vips[s.key.Addr]:
			beside = append(beside, s.String())
		default:
			other = append(other, s.String())
		}
	}
	show := "cat /proc/net/ip_vs"
	if _, err := v.Look("ipvsadm"); err == nil {
		show = "ipvsadm -Ln"
	}
	if len(inTheWay) > 0 {
		v.add(problem("virtual servers of other programs are where services are: "+list(inTheWay),
			"IPVS gives each address and port to one; vipd does not touch what it did not create. "+
				"Remove it with the program that created it, or give the service another VIP or port",
			show))
	}
	if len(beside) > 0 {
		v.add(note("virtual servers of other programs are on VIPs of services, on other ports: "+list(beside),
			"they are served beside vipd's, which leaves them alone", show))
	}
	if len(other) > 0 {
		v.add(note("there are virtual servers of other programs: "+list(other), "vipd leaves them alone", show))
	}
}

// otherOwners looks for programs that manage virtual servers.
func (v *visit) otherOwners() {
	for _, p := range []struct{ name, why string }{
		{"keepalived", "it may have virtual servers, which vipd leaves alone; with lvs_flush in its configuration it removes vipd's when it starts or stops, " +
			"and vipd makes them again within a second or so"},
		{"ldirectord", "it has virtual servers, which vipd leaves alone; no address and port may be in both configurations"},
	} {
		if v.runs(p.name) {
			v.add(note(p.name+" is running", p.why, ""))
		}
	}
	if interfaces, err := v.Interfaces(); err == nil && slices.ContainsFunc(interfaces, func(i Interface) bool { return i.Name == "kube-ipvs0" }) {
		f := note("kube-proxy is or was here in ipvs mode (kube-ipvs0)",
			"it deletes virtual servers that it does not know, other than in the networks that it is told to leave alone: name those of the VIPs",
			"kube-proxy --ipvs-exclude-cidrs="+v.vipNetwork()+"  # with its other flags, or ipvs.excludeCIDRs in its configuration")
		if v.usesIPVS() {
			f.Level = Warning
		}
		v.add(f)
	}
}

// vipNetwork is an example of a network that holds VIPs.
func (v *visit) vipNetwork() string {
	for _, f := range v.Frontends {
		if !f.NodePort {
			if p, err := f.Addr.Prefix(f.Addr.BitLen() / 4 * 3); err == nil {
				return p.String()
			}
		}
	}
	return "10.96.0.0/16"
}

// virtualSysctl is a setting of the kernel's virtual servers, and what is the matter with another value.
type virtualSysctl struct{ name, value, loss string }

// virtualSysctls are those that ipvs mode needs on this kernel.
func (v *visit) virtualSysctls() []virtualSysctl {
	all := []virtualSysctl{
		{"conntrack", "1", "the node's address can't replace the client's, so that node ports and clients beside endpoints fail, and policies DROP stop connections to VIPs"},
		{"expire_nodest_conn", "1", "connections to endpoints that are gone hang until the client gives up"},
		{"expire_quiescent_template", "1", "clients with affinity keep coming to an endpoint that drains"},
	}
	if v.kernelSince(4, 1) && !v.kernelSince(5, 9) {
		all = append(all, virtualSysctl{"conn_reuse_mode", "0", "a client that uses a port again waits a second for its connection, on kernels 4.1 to 5.8"})
	}
	return all
}

// checkVirtualServers is about the sysctls of IPVS, which vipd sets when it starts unless that is not wanted, or would
// change what virtual servers of others do.
func checkVirtualServers(v *visit) {
	before := len(v.found)
	if v.mode().Name != config.IPVSMode || v.sysctl("net.ipv4.vs.conntrack") == "" {
		return
	}
	foreign, err := v.foreign()
	others := err == nil && len(foreign) > 0
	for _, s := range v.virtualSysctls() {
		name := "net.ipv4.vs." + s.name
		value := v.sysctl(name)
		if value == "" || value == s.value || v.Status == nil && v.Config.Host.ManageSysctls && !others {
			continue
		}
		f := warning(fmt.Sprintf("%s is %s", name, value), s.loss, "sysctl -w "+name+"="+s.value)
		if others && v.Config.Host.ManageSysctls {
			f.What += "; vipd leaves it, for it would change virtual servers of other programs"
		}
		v.add(f)
	}
	if len(v.found) == before && v.Status != nil {
		v.add(fine("virtual servers are set as vipd needs them (net.ipv4.vs)"))
	}
}
