// Package doctor examines a host: its abilities, and obstacles to the traffic of VIPs. "vipctl
// doctor" prints its findings, and the daemon makes problems of some of them each minute.
//
//	findings := doctor.Examine(ctx, doctor.Host{Config: c, Status: status, ...})
//
// A Host is the input of checks: values, and functions that read the system. It is observed once. A
// check is a function in the table checks, from the observed host to findings. Each finding has a
// level, an observation, the reason why it matters, and a command that fixes it.
//
// Only trials of modes change the host: they make and delete a few objects that no traffic reaches.
// They need root, and leave a running vipd alone. An observation that needs more privileges is a
// finding. The package fixes nothing.
package doctor
