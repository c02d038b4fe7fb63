// Package doctor looks at a host as vipd finds it: what it can do, and what will get in the way of traffic to VIPs. It
// is what "vipctl doctor" prints.
//
//	findings := doctor.Examine(ctx, doctor.Host{Config: c, Status: status, ...})
//
// A check is a function in the table of checks, from a Host to findings; each finding has a level, what was seen, why it
// matters, and the command that mends it. All that a check sees of the host comes through the Host's fields.
//
// Nothing is changed but for the trials of modes, which make and delete a few objects that no traffic meets; they need
// root, and leave a running vipd alone. What can't be looked at is a finding too. The package does not mend.
package doctor
