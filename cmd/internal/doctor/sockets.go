package doctor

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"vipd/balancer"
)

// socket is one that waits for clients.
type socket struct {
	at    balancer.Key
	inode string
}

// The states in /proc/net/tcp and udp of sockets that wait for clients: TCP_LISTEN and TCP_CLOSE of the kernel's
// include/net/tcp_states.h, the latter of UDP sockets that are not connected.
const (
	listening   = "0A"
	unconnected = "07"
)

// sockets reads all sockets that wait for clients.
func (v *visit) sockets() []socket {
	var all []socket
	for _, file := range []struct {
		name  string
		proto balancer.Protocol
		state string
	}{{"tcp", balancer.TCP, listening}, {"tcp6", balancer.TCP, listening}, {"udp", balancer.UDP, unconnected}, {"udp6", balancer.UDP, unconnected}} {
		for line := range strings.Lines(v.text("/proc/thread-self/net/" + file.name)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != file.state {
				continue
			}
			if at, ok := parseSocket(f[1]); ok {
				all = append(all, socket{balancer.Key{Addr: at.Addr(), Port: at.Port(), Proto: file.proto}, f[9]})
			}
		}
	}
	return all
}

// parseSocket reads an address as the kernel writes it: words of 32 bits in the host's byte order, in hexadecimal, and
// the port.
func parseSocket(text string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	n, errPort := strconv.ParseUint(port, 16, 16)
	if err != nil || errPort != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw) // of the length of an address
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), true
}

// checkSockets looks for other programs that listen where frontends are.
func checkSockets(_ context.Context, v *visit) []Finding {
	if len(v.Frontends) == 0 {
		return nil
	}
	owners := v.Owners()
	sockets := v.sockets()
	var found []Finding
	for _, f := range v.Frontends {
		for _, s := range sockets {
			if s.at.Port != f.Port || s.at.Proto != f.Proto || !meets(s.at.Addr, f.Addr) {
				continue
			}
			owner, known := owners[s.inode]
			if owner == "vipd" || !known && v.Status != nil && s.at.Addr == f.Addr {
				continue // its own, or most likely so
			}
			if finding, bad := v.taken(f, s.at, owner); bad {
				found = append(found, finding)
			}
		}
	}
	if len(found) == 0 {
		found = append(found, Finding{Level: OK, What: "no other program listens where services do"})
	}
	return found
}

// meets reports whether a socket on this address gets what is for the other.
func meets(on, to netip.Addr) bool {
	if on.IsUnspecified() {
		return on.Is6() || to.Is4() // a socket on :: usually takes IPv4 too
	}
	return on == to
}

// taken is the finding about a socket of another program on a frontend. One on every address is in nobody's way, unless
// vipd listens itself, or the port is a node's.
func (v *visit) taken(f Frontend, at balancer.Key, owner string) (Finding, bool) {
	if owner == "" {
		owner = "another program"
	}
	out := Finding{
		Level: Warning, What: fmt.Sprintf("%s listens on %s, where service %s is (%s)", owner, at, f.Service, f.Key),
		Why:  "it gets no connection any more that comes to this address, and comes back in its place when vipd goes",
		Mend: fmt.Sprintf("ss -lntup 'sport = :%d'", f.Port),
	}
	switch {
	case v.binds():
		out.Level, out.Why = Problem, "vipd has to listen there itself in userspace mode without redirects"
		return out, true
	case at.Addr == f.Addr || f.NodePort:
		return out, true
	}
	return Finding{}, false
}
