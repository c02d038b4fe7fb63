// Package lockfile ensures that only one program at a time uses a run_dir: the daemon for its
// lifetime, or vipctl while it cleans up after a dead daemon. The kernel releases the lock when the
// process ends.
//
// The lock guards the files in run_dir. Several network namespaces may share a run_dir, and so may
// vipds without privileges in the kernel. Package netlock guards the network namespace.
package lockfile
