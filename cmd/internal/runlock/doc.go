// Package runlock makes sure that one program at a time has a run_dir: the daemon for its whole life, or vipctl while it
// cleans up after one that died. The kernel lets go of the lock with the process, however that ends.
package runlock
