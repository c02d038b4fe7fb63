// Package netlock ensures that only one program at a time changes a network namespace for vipd: the
// daemon for its lifetime, or vipctl while it cleans up.
//
// The rules, sets and devices of vipd have fixed names. A second vipd, even with another run_dir,
// would mistake the first vipd's objects for its own and remove them. The lock is a Unix socket
// with an abstract name. The kernel keeps such names for each network namespace, and frees them
// when the process ends. A connection to the socket identifies the holder.
//
// Package lockfile guards the files in run_dir, which two network namespaces may share.
package netlock
