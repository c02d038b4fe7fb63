package doctor

import (
	"context"
	"fmt"

	"vipd/balancer"
)

// checkConfig reports why the configuration can't be used.
func checkConfig(_ context.Context, o *observed) []Finding {
	if o.ConfigProblem == "" {
		return nil
	}
	return []Finding{problem("the configuration: "+o.ConfigProblem, "", "vipctl check "+o.ConfigFile)}
}

// checkDaemon reports whether vipd is running, whether its mode differs from the configured mode,
// and how many problems it has.
func checkDaemon(_ context.Context, o *observed) []Finding {
	if o.Status == nil {
		return []Finding{noDaemon(o)}
	}
	found := []Finding{fine(fmt.Sprintf("vipd %s runs on node %s", o.Status.Version, o.Status.Node))}
	if m := o.Status.Mode; m.Fallback {
		found = append(found, problem(fmt.Sprintf("vipd uses %s mode, although %s is configured: %s", m.InUse, m.Wanted, m.Reason),
			"modes differ in features and performance", "vipctl reload  # after you fix the cause"))
	}
	grave := 0
	for _, p := range o.Problems {
		if p.Severity != balancer.SeverityWarning && !o.defined(p) {
			grave++
		}
	}
	if grave > 0 {
		found = append(found, warning(fmt.Sprintf("vipd reports problems (%d)", grave), "", "vipctl status"))
	}
	return found
}

// checkFolders reports directories that will prevent vipd from starting.
func checkFolders(_ context.Context, o *observed) (found []Finding) {
	for _, refused := range o.Refused(o.Config) {
		found = append(found, problem("vipd does not start with "+refused.Field+": "+refused.Err.Error(), "", "vipctl check "+o.ConfigFile))
	}
	return found
}

// noDaemon returns the finding that no vipd answers. Its level is problem if vipd's VIPs are still
// on this host, and otherwise note.
func noDaemon(o *observed) Finding {
	if held, err := o.Held(); err == nil && len(held) > 0 {
		return problem(o.NoDaemon, fmt.Sprintf("its VIPs are still on this host (%d): in userspace mode no program answers there; in other "+
			"modes the kernel still serves, but does not follow changes or failures", len(held)), "systemctl restart vipd")
	}
	return note(o.NoDaemon, "the findings below are about the host and the configuration", "")
}
