// Package lockfile ensures that only one program at a time uses a run_dir. The daemon locks it for
// its lifetime, and vipctl locks it while it cleans up after a daemon that has exited. The kernel
// releases the lock when the process exits.
//
// The lock guards the files in run_dir. Two vipds in different network namespaces may share a
// run_dir, as may two unprivileged vipds in the same namespace. Package netlock guards the network
// namespace.
package lockfile
