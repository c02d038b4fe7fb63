package userspace

import (
	"fmt"
	"os"
)

// localPorts is how many ports the kernel chooses from for sockets that ask for none, of both families; 0: not known.
func localPorts() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	var first, last int
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		return 0
	}
	return last - first + 1
}
