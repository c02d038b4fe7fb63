// Package doctor examines a host: its abilities, and obstacles to the traffic of VIPs. "vipctl
// doctor" prints the findings. Each minute, the daemon reports some of them as problems.
//
//	findings := doctor.Examine(ctx, doctor.Host{Config: c, Status: status, ...})
//
// A Host is the input of checks: values, and functions that read the system. It is observed once. A
// check is a function in the table checks, from the observed host to findings. Each finding has a
// level, an observation, the reason why it matters, and a command that fixes it.
//
// Only trials of modes change the host: they create and delete a few objects that receive no
// traffic. They need root, and don't affect a running vipd. If an observation needs more
// privileges, a finding reports that. The package fixes nothing.
package doctor
