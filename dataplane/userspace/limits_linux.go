package userspace

import (
	"fmt"
	"os"
)

// localPorts returns the number of local ports from which the kernel can choose, for both address
// families, or 0 if the number is unknown.
func localPorts() int {
	first, last := localPortRange()
	if last == 0 {
		return 0
	}
	return last - first + 1
}

// localPortRange returns the first and last local port from which the kernel can choose, or zeros
// if they are unknown.
func localPortRange() (first, last int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0
	}
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		return 0, 0
	}
	return first, last
}
