package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vipd/cmd/internal/config"
)

// checkLocalPorts looks for node ports that the kernel may also assign to this host's own
// connections. In ipvs mode, IPVS would send the answers to such a connection to endpoints. In
// other modes, conntrack or a listening socket prevents that.
func checkLocalPorts(_ context.Context, o *observed) []Finding {
	var low, high int
	const between, reserved = "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports"
	if _, err := fmt.Sscan(o.sysctl(between), &low, &high); err != nil || o.mode().Name != config.IPVSMode {
		return nil
	}
	var ports []int
	for _, f := range o.Frontends {
		if port := int(f.Port); f.NodePort && port >= low && port <= high && !inPorts(o.sysctl(reserved), port) {
			ports = append(ports, port)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	slices.Sort(ports)
	var names, all []string
	if before := o.sysctl(reserved); before != "" {
		all = append(all, before)
	}
	for _, port := range slices.Compact(ports) {
		names, all = append(names, strconv.Itoa(port)), append(all, strconv.Itoa(port))
	}
	return []Finding{warning(fmt.Sprintf("this host's own connections can use node ports as their source ports: %s (%s is %d to %d)", list(names), between, low, high),
		"in ipvs mode, these connections fail, because their answers go to endpoints. Use node ports outside the range, or reserve them",
		"sysctl -w "+reserved+"="+strings.Join(all, ","))}
}

// inPorts reports whether text, a list such as "8080,30000-30100", contains the port.
func inPorts(text string, port int) bool {
	for part := range strings.SplitSeq(text, ",") {
		first, last, _ := strings.Cut(part, "-")
		low, errLow := strconv.Atoi(first)
		high, errHigh := strconv.Atoi(cmp.Or(last, first))
		if errLow == nil && errHigh == nil && low <= port && port <= high {
			return true
		}
	}
	return false
}
