// Package netlock ensures that only one vipd or vipctl at a time changes a network namespace. The
// daemon holds the lock for its lifetime, and vipctl while it cleans up.
//
// The rules, sets and devices of vipd have fixed names. A second vipd, even with another run_dir,
// would mistake the first vipd's objects for its own and remove them. The lock is a Unix socket
// with an abstract name. The kernel keeps such names for each network namespace, and frees a name
// when its process ends. A process that connects to the socket learns who the holder is.
//
// Package lockfile guards the files in run_dir, which two network namespaces may share.
package netlock
