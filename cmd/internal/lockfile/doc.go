// Package lockfile makes sure that one program at a time has a run_dir: the daemon for its whole life, or vipctl while it
// cleans up after one that died. The kernel lets go of the lock with the process, however that ends.
//
// It guards the files in run_dir, which vipds in several network namespaces might share, and those without any right to the
// kernel. Package netlock guards the network namespace.
package lockfile
