package doctor

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
)

// ipvsTable is the kernel's list of virtual servers, with the size of its connection table in the first line. It is
// there once ip_vs is loaded.
const ipvsTable = "/proc/thread-self/net/ip_vs"

// server is one virtual server of the kernel.
type server struct {
	key balancer.Key
	// mark is set instead of key where a server is for packets with a mark.
	mark string
}

// String is how the server is shown.
func (s server) String() string {
	if s.mark != "" {
		return "mark " + s.mark
	}
	return s.key.String()
}

// servers reads the kernel's virtual servers.
func (v *visit) servers() []server {
	var all []server
	for line := range strings.Lines(v.text(ipvsTable)) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		proto := balancer.Protocol(strings.ToLower(f[0]))
		switch proto {
		case balancer.TCP, balancer.UDP, balancer.SCTP:
			if at, ok := hexAddrPort(f[1]); ok {
				all = append(all, server{key: balancer.Key{Addr: at.Addr(), Port: at.Port(), Proto: proto}})
			}
		case "fwm":
			if mark, err := strconv.ParseUint(f[1], 16, 32); err == nil {
				all = append(all, server{mark: strconv.FormatUint(mark, 10)})
			}
		}
	}
	return all
}

// hexAddrPort reads 0A600A00:0050, in network order, and [2001:0db8:...]:0050.
func hexAddrPort(text string) (netip.AddrPort, bool) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return netip.AddrPort{}, false
	}
	port, err := strconv.ParseUint(text[at+1:], 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	if six, ok := strings.CutPrefix(text[:at], "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(six, "]"))
		return netip.AddrPortFrom(a, uint16(port)), err == nil
	}
	four, err := hex.DecodeString(text[:at])
	a, ok := netip.AddrFromSlice(four)
	return netip.AddrPortFrom(a, uint16(port)), err == nil && ok
}

// foreign returns the virtual servers that vipd's ledger does not name.
func (v *visit) foreign() ([]server, error) {
	all := v.servers()
	if len(all) == 0 {
		return nil, nil
	}
	owned, err := v.Owned()
	ours := map[balancer.Key]bool{}
	for _, key := range owned {
		ours[key] = true
	}
	return slices.DeleteFunc(all, func(s server) bool { return s.mark == "" && ours[s.key] }), err
}
