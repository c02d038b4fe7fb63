package sockets

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"vipd/balancer"
)

// Socket is a listening socket. An unspecified address means all of the host's addresses. The
// address :: includes IPv4 addresses.
type Socket struct {
	At    balancer.Key
	Inode string
}

// Receives reports whether the socket receives packets to key. It assumes that a socket on :: also
// receives IPv4 packets, as is usual.
func (s Socket) Receives(key balancer.Key) bool {
	on := s.At.Addr
	meets := on == key.Addr || on.IsUnspecified() && (on.Is6() || key.Addr.Is4())
	return meets && key.Port.Contains(s.At.Port.First()) && s.At.Proto == key.Proto
}

// Folder is the directory that contains the [Files].
const Folder = "/proc/thread-self/net/"

// File is one of the kernel's socket lists.
type File struct {
	Name  string
	Proto balancer.Protocol
	// state is the hexadecimal state of listening sockets (see the kernel's
	// include/net/tcp_states.h): TCP_LISTEN or, for UDP sockets that are not connected, TCP_CLOSE.
	state string
}

// Files returns the kernel's TCP and UDP socket lists.
func Files() []File {
	return []File{{"tcp", balancer.TCP, "0A"}, {"tcp6", balancer.TCP, "0A"}, {"udp", balancer.UDP, "07"}, {"udp6", balancer.UDP, "07"}}
}

// In returns the listening sockets in text, which is the file's content. The kernel lists listening
// TCP sockets first, and In stops after them, because a proxy has many other sockets.
func (f File) In(text io.Reader) (all []Socket) {
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) < 10, words[0] == "sl": // the heading, or an unknown line
			continue
		case words[3] != f.state && f.Proto == balancer.TCP:
			return all
		case words[3] != f.state:
			continue
		}
		if at, ok := parse(words[1]); ok {
			all = append(all, Socket{balancer.Key{Addr: at.Addr(), Port: balancer.PortRange(at.Port()), Proto: f.Proto}, words[9]})
		}
	}
	return all
}

// parse parses an address and a port in the kernel's format. Both are hexadecimal. The address
// consists of 32-bit words in the host's byte order.
func parse(text string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	n, errPort := strconv.ParseUint(port, 16, 16)
	if err != nil || errPort != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	a, _ := netip.AddrFromSlice(raw) // raw has the length of an address
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), true
}

// All returns all listening sockets in this network namespace.
func All() (all []Socket) {
	for _, f := range Files() {
		if text, err := os.Open(Folder + f.Name); err == nil { // the file is missing if IPv6 is off
			all = append(all, f.In(text)...)
			_ = text.Close() // the file was only read
		}
	}
	return all
}

// Own returns the inodes of this process's sockets.
func Own() map[string]bool {
	own := map[string]bool{}
	descriptors, _ := os.ReadDir("/proc/self/fd") // systems without /proc list no sockets anyway
	for _, d := range descriptors {
		if inode, ok := strings.CutPrefix(target("/proc/self/fd/"+d.Name()), "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return own
}

// Owners maps each socket's inode to the name of the program that owns it. It omits sockets of
// processes that this process can't inspect.
func Owners() map[string]string {
	owners := map[string]string{}
	descriptors, _ := filepath.Glob("/proc/[0-9]*/fd/*") // fails only for invalid patterns
	for _, d := range descriptors {
		inode, ok := strings.CutPrefix(target(d), "socket:[")
		if !ok {
			continue
		}
		name, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(d)), "comm"))
		if err == nil {
			owners[strings.TrimSuffix(inode, "]")] = strings.TrimSpace(string(name))
		}
	}
	return owners
}

// target returns a symbolic link's target, or "" if the link can't be read.
func target(link string) string {
	to, _ := os.Readlink(link) // the descriptor may have been closed
	return to
}
