// Package atomicfile replaces and removes files atomically: a process that is killed leaves either
// the old or the new file. vipd uses it for its ledgers in run_dir and its state in state_dir, in
// packages of store, dataplane and cmd.
package atomicfile
