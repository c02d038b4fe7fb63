// Package atomicfile replaces and removes files atomically: if the process is killed, the old or
// the new file is left. vipd writes all its ledgers in run_dir and state in state_dir with it.
// Packages of store, dataplane and cmd use it.
package atomicfile
