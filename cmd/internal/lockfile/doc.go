// Package lockfile ensures that only one program at a time uses a run_dir. The daemon locks it for
// its lifetime, and vipctl while it cleans up after a daemon that has ended. The kernel releases
// the lock when the process ends.
//
// The lock guards the files in run_dir, which two vipds in different network namespaces may share.
// Two vipds without privileges in the same namespace may also share them. Package netlock guards
// the network namespace.
package lockfile
