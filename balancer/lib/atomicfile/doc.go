// Package atomicfile replaces and removes files atomically: if a process is killed, either the old
// or the new file remains. vipd uses it for its ledgers in run_dir and its state in state_dir, in
// packages of store, dataplane and cmd.
package atomicfile
