// Package hooks runs the programs that the configuration names for events of the history.
//
//	history --> one goroutine a hook, with its own place in the history --> one run of the program an event, in order
//
// A hook that is slow or hangs delays neither vipd nor the other hooks: a run has a bounded time, and of the events that wait for a
// hook the oldest are left out. The programs run like exec health checks (dataplane/probe/command). What fails is logged, and
// is no event: a hook for problems would run for its own failures.
package hooks
