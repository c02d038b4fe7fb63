// Package atomicfile replaces and removes files so that a process that is killed meanwhile leaves the old file or the new one.
// It is the one way in which vipd keeps ledgers in run_dir and state in state_dir. It stands here because store, dataplane and
// cmd need it, and import nothing else in common. The model does no I/O: nothing in balancer imports it.
package atomicfile
