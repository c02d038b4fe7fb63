// Package atomicfile replaces and removes files so that a process that is killed meanwhile leaves the old file or the new one.
// It is the one way in which vipd keeps ledgers in run_dir and state in state_dir. Packages of
// store, dataplane and cmd use it.
package atomicfile
