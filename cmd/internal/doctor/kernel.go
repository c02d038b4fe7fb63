package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
)

// presence says whether the kernel has a module.
type presence int

const (
	// unseen: neither the kernel nor a list of modules names it. Kernels without modules tell little.
	unseen presence = iota
	// loadable: the kernel loads it on request.
	loadable
	// loaded, or built in.
	loaded
)

// module looks for a kernel module.
func (v *visit) module(name string) presence {
	if _, err := v.ReadFile("/sys/module/" + name + "/uevent"); err == nil {
		return loaded
	}
	if _, err := v.ReadFile("/sys/module/" + name + "/refcnt"); err == nil {
		return loaded
	}
	folder := "/lib/modules/" + v.text("/proc/sys/kernel/osrelease") + "/"
	file := "/" + name + ".ko"
	switch {
	case strings.Contains(v.text(folder+"modules.builtin"), file):
		return loaded
	case strings.Contains(v.text(folder+"modules.dep"), file):
		return loadable
	}
	return unseen
}

// need is a match of iptables that vipd's rules use, by its name in the kernel's list.
type need struct {
	match string
	// by reports whether a mode needs it.
	by   func(modes.Mode) bool
	loss string
}

func needs() []need {
	every := func(modes.Mode) bool { return true }
	only := func(name config.ModeName) func(modes.Mode) bool {
		return func(m modes.Mode) bool { return m.Name == name }
	}
	return []need{
		{"connmark", every, "without it a policy DROP of iptables also stops connections to services"},
		{"conntrack", only(config.IPTablesMode), "without it iptables mode can't keep connections with their endpoints"},
		{"set", only(config.IPTablesMode), "without sets of addresses iptables mode does not work"},
		{"statistic", only(config.IPTablesMode), "without it connections can't be spread over endpoints"},
		{"bpf", only(config.IPTablesMode), "without it the schedulers sh and mh choose at random"},
		{"addrtype", only(config.IPVSMode), "without it a policy DROP in OUTPUT also stops what virtual servers forward"},
	}
}

// checkKernel looks for what rules need. The kernel lists what is loaded; it loads the rest by itself where it can.
func checkKernel(_ context.Context, v *visit) {
	text, err := v.ReadFile("/proc/thread-self/net/ip_tables_matches")
	if err != nil {
		v.add(note("the kernel's matches of iptables can't be seen: "+oneLine(err), "", "sudo vipctl doctor"))
		return
	}
	matches := strings.Fields(string(text))
	var there []string
	for _, n := range needs() {
		switch {
		case !n.by(v.mode()):
		case slices.Contains(matches, n.match), v.module("xt_"+n.match) != unseen:
			there = append(there, "xt_"+n.match)
		default:
			v.add(warning(fmt.Sprintf("the kernel does not show the match xt_%s", n.match), n.loss, "modprobe xt_"+n.match))
		}
	}
	if len(there) > 0 {
		v.add(fine("the kernel has what rules need: " + strings.Join(there, ", ")))
	}
	v.conntrackTable()
}

// conntrackTable compares the number of connections with the room for them.
func (v *visit) conntrackTable() {
	var count, limit int
	_, errCount := fmt.Sscan(v.sysctl("net.netfilter.nf_conntrack_count"), &count)
	_, errLimit := fmt.Sscan(v.sysctl("net.netfilter.nf_conntrack_max"), &limit)
	if errCount != nil || errLimit != nil {
		v.add(note("the kernel's connection tracking is not loaded", "it is as soon as rules need it", ""))
		return
	}
	f := fine(fmt.Sprintf("connection tracking has %d of %d entries in use", count, limit))
	if limit > 0 && count >= limit/10*8 {
		f.Level = Warning
		f.Why = "when it is full, the kernel drops new connections of the whole host"
		f.Mend = fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*limit)
	}
	v.add(f)
}

// Likely returns the mode that auto most likely takes on a host whose files read returns, and why it passes over better
// ones. It tries nothing: New of a mode is the proof.
func Likely(read func(path string) ([]byte, error)) (mode modes.Mode, why string) {
	v := &visit{Host: Host{ReadFile: read}}
	for _, mode = range modes.All() {
		if mode.Name != config.IPVSMode || v.module("ip_vs") != unseen {
			break
		}
		why = "this kernel has no module ip_vs"
	}
	return mode, why
}
