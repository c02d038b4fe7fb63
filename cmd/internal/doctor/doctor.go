package doctor

import (
	"context"
	"slices"
)

type check struct {
	// name is the check's subject. Several checks may share a name.
	name string
	run  func(ctx context.Context, o *observed) []Finding
	// everywhere reports whether the check is also useful on systems other than Linux.
	everywhere bool
}

// checks returns the table of checks, in the order of the output.
func checks() []check {
	return []check{
		{"vipd", checkConfig, true},
		{"vipd", checkFolders, true},
		{"vipd", checkDaemon, true},
		{"fleet", checkFleet, true},
		{"modes", checkModes, true},
		{"modes", checkChoice, true},
		{"ipvs", checkSchedulers, false},
		{"ipvs", checkConnectionTable, false},
		{"ipvs", checkForeignServers, false},
		{"ipvs", checkServerPrograms, false},
		{"tools", checkTools, false},
		{"tools", checkMixedBackends, false},
		{"kernel", checkMatches, false},
		{"kernel", checkConntrackTable, false},
		{"ownership", checkOwnership, false},
		{"sysctls", checkForwarding, false},
		{"sysctls", checkForwarding6, false},
		{"sysctls", checkVirtualServers, false},
		{"sysctls", checkServerTimeout, false},
		{"sysctls", checkLoopbackRouting, false},
		{"sysctls", checkReversePath, false},
		{"sysctls", checkARP, false},
		{"sysctls", checkAccounting, false},
		{"sysctls", checkWindows, false},
		{"sysctls", checkLoose, false},
		{"sysctls", checkBridges, false},
		{"sysctls", checkHairpin, false},
		{"sysctls", checkClientSource, false},
		{"others", checkPrograms, false},
		{"others", checkSaved, false},
		{"firewall", checkRules, false},
		{"firewall", checkOutput, false},
		{"firewall", checkForeignChains, false},
		{"firewall", checkFastPath, false},
		{"firewall", checkTranslations, false},
		{"firewall", checkTracking, false},
		{"firewall", checkMarks, false},
		{"sockets", checkSockets, false},
		{"sockets", checkLocalPorts, false},
		{"services", checkProblems, true},
		{"services", checkIdle, true},
		{"direct", checkDirect, false},
		{"traffic", checkTraffic, false},
	}
}

// runChecks runs the checks in the list some, and returns their findings. On systems other than
// Linux, it skips checks that are useful only on Linux.
func runChecks(ctx context.Context, o *observed, some []check) (found []Finding) {
	for _, c := range some {
		if o.NotLinux && !c.everywhere {
			continue
		}
		for _, f := range c.run(ctx, o) {
			f.Check = c.name
			found = append(found, f)
		}
	}
	return found
}

// Examine runs every check, and returns the findings in the checks' order.
func Examine(ctx context.Context, h Host) []Finding {
	o := observe(ctx, h)
	o.tryModes(ctx)
	return runChecks(ctx, o, checks())
}

// Watched returns the warnings and problems that the daemon looks for each minute. They are about
// other programs' rules that drop VIPs' packets or otherwise break their connections, programs that
// get no connections because services use their ports, node ports that this host's own connections
// may use, and obstacles to direct routing. Watched does not try modes.
func Watched(ctx context.Context, h Host) []Finding {
	o := observe(ctx, h, "filter", "raw", "mangle")
	sockets := grave(runChecks(ctx, o, slices.DeleteFunc(checks(), func(c check) bool { return c.name != "sockets" })))
	// If vipd can't listen because another program uses the port, userspace mode already reports
	// that.
	sockets = slices.DeleteFunc(sockets, func(f Finding) bool { return f.Level == Problem })
	direct := grave(runChecks(ctx, o, slices.DeleteFunc(checks(), func(c check) bool { return c.name != "direct" })))
	return slices.Concat(drops(ctx, o), sockets, direct)
}

// Drops returns warnings and problems about firewall rules that may keep packets from VIPs or
// endpoints, and a note if fast_path connections bypass other programs' rules.
func Drops(ctx context.Context, h Host) []Finding {
	o := observe(ctx, h, "filter", "raw", "mangle")
	bypassed := slices.DeleteFunc(checkFastPath(ctx, o), func(f Finding) bool { return f.Level != Note })
	return slices.Concat(drops(ctx, o), bypassed)
}

func drops(ctx context.Context, o *observed) []Finding {
	return grave(runChecks(ctx, o, slices.DeleteFunc(checks(), func(c check) bool { return c.name != "firewall" })))
}
