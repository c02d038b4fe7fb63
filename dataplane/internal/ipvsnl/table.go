package ipvsnl

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strconv"

	"vipd/balancer"
)

// readTable decodes /proc/net/ip_vs. It also counts the virtual servers that can't belong to a
// frontend, because of an unknown firewall mark or another protocol.
//
//	IP Virtual Server version 1.2.1 (size=4096)
//	Prot LocalAddress:Port Scheduler Flags
//	  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
//	TCP  0A600001:0050 wrr persistent 10800 FFFFFFFF
//	  -> 0A020001:1F90      Masq    1      0          0
//	TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0050 wrr
//	FWM  00000001 wrr
func readTable(r io.Reader, known *marks) (table map[balancer.Key]TableService, others int, err error) {
	t := tableReader{known: known, table: map[balancer.Key]TableService{}, names: map[string]string{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, lineBuffer), lineBuffer)
	for n := 0; lines.Scan(); n++ {
		if n < 3 { // skip the header
			continue
		}
		if err := t.line(lines.Bytes()); err != nil {
			return nil, 0, fmt.Errorf("line %d of the IPVS table of virtual servers, %q: %w", n+1, lines.Bytes(), err)
		}
	}
	t.end()
	return t.table, t.others, lines.Err()
}

// lineBuffer is large enough for any line and for the kernel's output of a single read: 4 KiB, or a
// whole virtual server if that is longer.
const lineBuffer = 64 << 10

// tableReader assembles virtual servers from the table's lines.
type tableReader struct {
	known  *marks
	table  map[balancer.Key]TableService
	others int
	// key and entry describe the virtual server whose destinations follow. If entry.Scheduler is
	// "", no virtual server has been read.
	key   balancer.Key
	entry TableService
	// destinations holds several virtual servers' destinations in a shared array. The destinations
	// of entry start at first.
	destinations []TableDestination
	first        int
	names        map[string]string
}

// end stores the last virtual server.
func (t *tableReader) end() {
	if t.entry.Scheduler == "" {
		return
	}
	if n := len(t.destinations); n > t.first {
		t.entry.Destinations = t.destinations[t.first:n:n]
	}
	t.table[t.key] = t.entry
	t.entry = TableService{}
}

func (t *tableReader) line(line []byte) error {
	word, rest := cut(line)
	if string(word) == "->" {
		if t.entry.Scheduler == "" {
			return nil
		}
		return t.destination(rest)
	}
	t.end()
	at, rest := cut(rest)
	key, err := t.keyOf(word, at)
	if err != nil {
		return err
	}
	if key.Proto == "" {
		t.others++
		return nil
	}
	scheduler, _ := cut(rest)
	if len(scheduler) == 0 {
		return errLine
	}
	t.key = key
	t.entry = TableService{Scheduler: t.name(scheduler)}
	if cap(t.destinations)-len(t.destinations) < 64 {
		t.destinations = make([]TableDestination, 0, 1024)
	}
	t.first = len(t.destinations)
	return nil
}

// keyOf decodes the first two words of a virtual server's line. The key has no protocol if no
// frontend can have that protocol.
func (t *tableReader) keyOf(kind, at []byte) (k balancer.Key, err error) {
	if string(kind) == "FWM" {
		mark, ok := hexNumber(at, 8)
		if !ok {
			return k, errLine
		}
		k, _ = t.known.find(mark)
		return k, nil
	}
	proto := protocolNamed(kind)
	if proto == "" {
		return k, nil
	}
	addr, err := hexAddrPort(at)
	return balancer.Key{Addr: addr.Addr(), Port: balancer.PortRange(addr.Port()), Proto: proto}, err
}

func (t *tableReader) destination(rest []byte) error {
	at, rest := cut(rest)
	addr, err := hexAddrPort(at)
	if err != nil {
		return err
	}
	forward, rest := cut(rest)
	weight, rest := cut(rest)
	active, rest := cut(rest)
	inactive, rest := cut(rest)
	w, ok1 := decimal(weight)
	a, ok2 := decimal(active)
	i, ok3 := decimal(inactive)
	method := forwardNamed(forward)
	if !ok1 || !ok2 || !ok3 || method == "" || len(rest) != 0 || w > math.MaxInt32 {
		return errLine
	}
	addr = netip.AddrPortFrom(addr.Addr(), swapPort(t.key, addr.Port()))
	t.destinations = append(t.destinations, TableDestination{addr, method, int(w), a, i})
	return nil
}

// name returns a scheduler's name as a string. Equal names share a string.
func (t *tableReader) name(b []byte) string {
	if s, ok := t.names[string(b)]; ok {
		return s
	}
	s := string(b)
	t.names[s] = s
	return s
}

// errLine means that a line does not have the format that Linux uses (up to 6.18).
var errLine = fmt.Errorf("its format is unknown")

func protocolNamed(word []byte) balancer.Protocol {
	switch string(word) {
	case "TCP":
		return balancer.TCP
	case "UDP":
		return balancer.UDP
	case "SCTP":
		return balancer.SCTP
	}
	return ""
}

// forwardNamed is the inverse of the kernel's function ip_vs_fwd_name, which has no name for
// bypass.
func forwardNamed(word []byte) balancer.Forward {
	switch string(word) {
	case "Masq":
		return balancer.NATForward
	case "Local":
		return LocalForward
	case "Tunnel":
		return balancer.TunnelForward
	case "Route":
		return balancer.DRForward
	}
	return ""
}

// cut returns a line's first word, and what follows it, without leading blanks.
func cut(line []byte) (word, rest []byte) {
	i := 0
	for i < len(line) && line[i] == ' ' {
		i++
	}
	j := i
	for j < len(line) && line[j] != ' ' {
		j++
	}
	k := j
	for k < len(line) && line[k] == ' ' {
		k++
	}
	return line[i:j], line[k:]
}

// hexAddrPort decodes 0A600001:0050 or [fd00:0000:0000:0000:0000:0000:0000:0001]:0050.
func hexAddrPort(b []byte) (netip.AddrPort, error) {
	if len(b) < 5 || b[len(b)-5] != ':' {
		return netip.AddrPort{}, errLine
	}
	at, port := b[:len(b)-5], b[len(b)-4:]
	if len(at) > 2 && at[0] == '[' && at[len(at)-1] == ']' {
		at = at[1 : len(at)-1]
	}
	return hexAddr(at, port)
}

// hexAddr decodes an address, such as 0A600001 or an IPv6 address with all its digits, and a port
// with four digits.
func hexAddr(at, port []byte) (netip.AddrPort, error) {
	p, ok := hexNumber(port, 4)
	if !ok {
		return netip.AddrPort{}, errLine
	}
	if len(at) == 8 {
		n, ok := hexNumber(at, 8)
		if !ok {
			return netip.AddrPort{}, errLine
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), uint16(p)), nil
	}
	if len(at) != 39 {
		return netip.AddrPort{}, errLine
	}
	var a [16]byte
	for i := range 8 {
		group := at[5*i:]
		if i < 7 && group[4] != ':' {
			return netip.AddrPort{}, errLine
		}
		if _, err := hex.Decode(a[2*i:], group[:4]); err != nil {
			return netip.AddrPort{}, errLine
		}
	}
	return netip.AddrPortFrom(netip.AddrFrom16(a), uint16(p)), nil
}

// hexNumber decodes a hexadecimal number with this number of digits.
func hexNumber(b []byte, digits int) (n uint32, ok bool) {
	if len(b) != digits {
		return 0, false
	}
	for _, c := range b {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			return 0, false
		}
		n = n<<4 | uint32(c)
	}
	return n, true
}

func decimal(b []byte) (uint32, bool) {
	if len(b) == 0 || len(b) > 10 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b), 10, 32)
	return uint32(n), err == nil
}
