// Package netlock ensures that only one vipd or vipctl at a time changes a network namespace. The
// daemon holds the lock for its lifetime, and vipctl holds it while it cleans up.
//
// vipd's rules, sets and devices have fixed names. A second vipd, even with a different run_dir,
// would mistake the first vipd's objects for its own and remove them. The lock is a Unix socket
// with an abstract name. Abstract names belong to a network namespace, and the kernel frees a name
// when its process exits. A process that connects to the socket learns who the holder is.
//
// Package lockfile guards the files in run_dir, which two network namespaces may share.
package netlock
