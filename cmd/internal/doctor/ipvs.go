package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/cmd/internal/config"
)

// wantsIPVS reports whether vipd uses ipvs mode, or is configured to try it.
func wantsIPVS(o *observed) bool {
	return o.Status != nil && o.Status.Mode.InUse == string(config.IPVSMode) ||
		o.Config.Mode == config.IPVSMode || o.Config.Mode == config.AutoMode
}

// checkSchedulers checks whether the kernel has the IPVS modules for the services' schedulers.
func checkSchedulers(_ context.Context, o *observed) (found []Finding) {
	if !wantsIPVS(o) || o.module("ip_vs") == unseen || o.text("/lib/modules/"+o.release()+"/modules.dep") == "" {
		return nil // the kernel's modules can't be listed; the trial of ipvs mode shows whether it works
	}
	wanted := map[string]bool{}
	for _, f := range o.Frontends {
		switch f.Scheduler {
		case "":
		case balancer.Random:
			wanted["ip_vs_wrr"] = true // IPVS has no random scheduler
		default:
			wanted["ip_vs_"+string(f.Scheduler)] = true
		}
	}
	var present []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if o.module(name) == unseen {
			found = append(found, warning(fmt.Sprintf("the kernel lacks the scheduler %s, which services use", name),
				"for these services, ipvs mode uses the kernel's most similar scheduler", o.packaged(name)))
		} else {
			present = append(present, name)
		}
	}
	if len(present) > 0 {
		found = append(found, fine("the kernel has the schedulers that services use: "+strings.Join(present, ", ")))
	}
	return found
}

// checkConnectionTable checks the number of buckets in IPVS's connection hash table.
func checkConnectionTable(_ context.Context, o *observed) []Finding {
	bits, err := strconv.Atoi(o.text("/sys/module/ip_vs/parameters/conn_tab_bits"))
	if err != nil || !wantsIPVS(o) {
		return nil // the module is not loaded, or is built in
	}
	f := fine(fmt.Sprintf("IPVS finds connections in a table of %d buckets", 1<<bits))
	if bits < 16 {
		f.Level = Note
		f.Why = "with more connections than that, each packet searches a longer list: 100,000 connections need about 2^17. The size is fixed while ip_vs is loaded"
		f.Fix = "echo 'options ip_vs conn_tab_bits=20' >/etc/modprobe.d/vipd.conf  # then load ip_vs again, or restart the host"
	}
	return []Finding{f}
}

// virtualSysctl is an IPVS sysctl and its required value. loss is the effect of any other value.
type virtualSysctl struct{ name, value, loss string }

// virtualSysctls returns the sysctls that ipvs mode needs on this kernel.
func virtualSysctls(o *observed) []virtualSysctl {
	all := []virtualSysctl{
		{"conntrack", "1", "the node's address can't replace the client's, so node ports and connections from an endpoint's network fail, and DROP policies stop connections to VIPs"},
		{"expire_nodest_conn", "1", "connections to removed endpoints hang until the client gives up"},
		{"expire_quiescent_template", "1", "clients with affinity still reach an endpoint that drains"},
	}
	if o.kernelSince(4, 1) && !o.kernelSince(5, 9) {
		all = append(all, virtualSysctl{"conn_reuse_mode", "0", "on kernels 4.1 to 5.8, a client that reuses a port waits a second for its connection"})
	}
	return all
}

// checkVirtualServers checks IPVS's sysctls. vipd sets them when it starts, unless manage_sysctls
// is off or other programs have virtual servers.
func checkVirtualServers(_ context.Context, o *observed) (found []Finding) {
	if o.mode().Name != config.IPVSMode || o.sysctl("net.ipv4.vs.conntrack") == "" {
		return nil
	}
	foreign, err := foreignServers(o)
	others := err == nil && len(foreign) > 0
	for _, s := range virtualSysctls(o) {
		name := "net.ipv4.vs." + s.name
		value := o.sysctl(name)
		if value == "" || value == s.value || o.Status == nil && o.Config.Host.ManageSysctls && !others {
			continue
		}
		f := warning(fmt.Sprintf("%s is %s", name, value), s.loss, "sysctl -w "+name+"="+s.value)
		if others && o.Config.Host.ManageSysctls {
			f.What += "; vipd does not change it, because it also applies to other programs' virtual servers"
		}
		found = append(found, f)
	}
	if len(found) == 0 && o.Status != nil {
		found = append(found, fine("IPVS's sysctls have the values that vipd needs (net.ipv4.vs)"))
	}
	return found
}

// checkServerTimeout checks whether IPVS forgets idle TCP connections earlier than conntrack does.
func checkServerTimeout(ctx context.Context, o *observed) []Finding {
	if o.mode().Name != config.IPVSMode || o.sysctl("net.ipv4.vs.conntrack") == "" || !o.Root {
		return nil // only root can read the timeout; if IPVS isn't loaded, reading it would load the module
	}
	seconds, err := strconv.Atoi(o.sysctl("net.netfilter.nf_conntrack_tcp_timeout_established"))
	now, unread := o.ServerTimeout(ctx)
	if err != nil || unread != nil {
		return nil
	}
	configured := o.Config.IPVS.TCPTimeout
	what := "IPVS keeps TCP connections without packets for " + decode.FormatDuration(now)
	if now >= time.Duration(seconds)*time.Second || configured != nil && *configured == now {
		return []Finding{fine(what)}
	}
	foreign, err := foreignServers(o)
	reason, fix := "vipd will raise the timeout at its next full comparison", fmt.Sprintf("ipvsadm --set %d 0 0", seconds)
	switch {
	case configured != nil:
		reason = "ipvs.tcp_timeout is set, so vipd does not raise the timeout to conntrack's timeout"
	case !o.Config.Host.ManageSysctls:
		reason = "manage_sysctls is false, so vipd does not raise the timeout"
	case err != nil || len(foreign) > 0:
		reason = "vipd does not change the timeout, because it also applies to other programs' virtual servers"
	case o.Status == nil:
		return nil
	default:
		fix = ""
	}
	return []Finding{note(what, reason+". After that time, the connection's next packet is answered with a reset", fix)}
}
