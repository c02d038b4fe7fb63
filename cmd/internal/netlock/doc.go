// Package netlock makes sure that one program at a time changes a network namespace for vipd: the
// daemon for its whole life, or vipctl while it cleans up.
//
// The rules, sets and devices of vipd have fixed names, so that a second vipd, whatever its
// run_dir, would take those of the first for its own and remove them. The lock is a Unix socket
// with an abstract name: the kernel keeps such names for each network namespace, and frees them
// when the process ends, however it ends. A connection to the socket tells who has the lock.
//
// Package lockfile guards the files in run_dir, which two network namespaces may share.
package netlock
