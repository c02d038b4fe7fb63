package keepalived

import (
	"os"
	"slices"
	"strings"
)

// Here is like [Running], but returns nil if no other process has VRRP sockets in this process's
// network namespace. In that case, keepalived is running in another namespace, such as a
// container's.
func Here() []Router {
	if !foreignSockets() {
		return nil
	}
	return Running()
}

// foreignSockets reports whether another process has raw VRRP sockets in this network namespace.
func foreignSockets() bool {
	sockets := slices.Concat(rawSockets(readFile("/proc/thread-self/net/raw")), rawSockets(readFile("/proc/thread-self/net/raw6")))
	if len(sockets) == 0 {
		return false
	}
	var own []string
	for _, fd := range globFiles("/proc/self/fd/*") {
		name, _ := os.Readlink(fd) // fails if the file was closed in the meantime
		own = append(own, name)
	}
	return slices.ContainsFunc(sockets, func(inode string) bool { return !slices.Contains(own, "socket:["+inode+"]") })
}

// rawSockets returns the inodes of the VRRP sockets in list, which is the content of /proc/net/raw
// or /proc/net/raw6.
func rawSockets(list string) (inodes []string) {
	const protocol, inode = ":0070", 9
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > inode && strings.HasSuffix(fields[1], protocol) {
			inodes = append(inodes, fields[inode])
		}
	}
	return inodes
}
