package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// counter counts in the kernel, in the network namespace that it was made in. Its sockets are opened when they are
// needed first.
type counter struct {
	family ipset.Family
	nft    map[int]*nl.SocketHandle
	legacy *legacyTables
}

func newCounter(family ipset.Family) *counter {
	c := &counter{family: family, legacy: &legacyTables{family: family, fd: -1, known: map[string]knownTable{}}}
	if s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER); err == nil {
		c.nft = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}
	}
	domain := unix.AF_INET
	if family == ipset.IPv6 {
		domain = unix.AF_INET6
	}
	if fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
		c.legacy.fd = fd
	}
	return c
}

func (c *counter) close() {
	for _, s := range c.nft {
		s.Close()
	}
	c.nft = nil
	if c.legacy.fd >= 0 {
		_ = unix.Close(c.legacy.fd)
		c.legacy.fd = -1
	}
}

func (c *counter) differs(tool ruleKernel, table string, want map[string]int) (string, error) {
	t, ok := tool.(*xtables.Tool)
	switch {
	case !ok:
		return "", nil
	case t.Backend() == xtables.NFT:
		return c.differsNFT(table, want)
	}
	return c.legacy.differs(table, want)
}

// differsNFT asks nftables for each chain, which counts its uses itself.
func (c *counter) differsNFT(table string, want map[string]int) (string, error) {
	if c.nft == nil {
		return "", nil
	}
	for chain, n := range want {
		got, err := c.uses(table, chain)
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return "", fmt.Errorf("looking at chain %s of table %s: %w", chain, table, err)
		}
		if got != n {
			return chain, nil
		}
	}
	return "", nil
}

func (c *counter) uses(table, chain string) (int, error) {
	family := uint8(unix.NFPROTO_IPV4)
	if c.family == ipset.IPv6 {
		family = unix.NFPROTO_IPV6
	}
	req := nl.NewNetlinkRequest(unix.NFT_MSG_GETCHAIN|unix.NFNL_SUBSYS_NFTABLES<<8, 0)
	req.Sockets = c.nft
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(table)))
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(chain)))
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, err
	}
	for _, m := range messages {
		if len(m) < 4 {
			continue
		}
		for a := range nl.ParseAttributes(m[4:]) {
			if a.Type&nl.NLA_TYPE_MASK == unix.NFTA_CHAIN_USE && len(a.Value) == 4 {
				return int(binary.BigEndian.Uint32(a.Value)), nil
			}
		}
	}
	return 0, nil
}

// legacyTables counts in the tables of the legacy backend, which the kernel hands out as a whole only: so they are read
// only when their number of entries has changed since they were read last.
type legacyTables struct {
	family ipset.Family
	fd     int
	known  map[string]knownTable
}

// knownTable is a table as it was read last.
type knownTable struct {
	info tableInfo
	uses map[string]int
}

// The options of getsockopt, of IPv4 and IPv6 alike (linux/netfilter_ipv4/ip_tables.h: IPT_SO_GET_INFO,
// IPT_SO_GET_ENTRIES).
const (
	getInfo    = 64
	getEntries = 65
)

// tableInfo is struct ipt_getinfo, or ip6t_getinfo.
type tableInfo struct {
	Name       [32]byte
	ValidHooks uint32
	HookEntry  [5]uint32
	Underflow  [5]uint32
	NumEntries uint32
	Size       uint32
}

func (l *legacyTables) differs(table string, want map[string]int) (string, error) {
	if l.fd < 0 {
		return "", nil
	}
	var info tableInfo
	copy(info.Name[:], table)
	if err := l.get(getInfo, unsafe.Pointer(&info), unsafe.Sizeof(info)); err != nil {
		return "", fmt.Errorf("asking for the size of table %s: %w", table, err)
	}
	if l.known[table].info != info {
		got, err := l.read(info)
		if err != nil {
			return "", fmt.Errorf("reading table %s: %w", table, err)
		}
		l.known[table] = knownTable{info, got}
	}
	for chain, n := range want {
		if l.known[table].uses[chain] != n {
			return chain, nil
		}
	}
	return "", nil
}

func (l *legacyTables) get(option int, to unsafe.Pointer, size uintptr) error {
	level := unix.SOL_IP
	if l.family == ipset.IPv6 {
		level = unix.SOL_IPV6
	}
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(l.fd), uintptr(level), uintptr(option),
		uintptr(to), uintptr(unsafe.Pointer(&length)), 0)
	runtime.KeepAlive(to)
	if errno != 0 {
		return errno
	}
	return nil
}

// read reads the table's entries and counts uses by chain.
func (l *legacyTables) read(info tableInfo) (map[string]int, error) {
	const head = 40 // struct ipt_get_entries: name, size, and padding
	// Words, for the kernel's structures are aligned so.
	buf := make([]uint64, (head+int(info.Size)+7)/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), len(buf)*8)
	copy(b, info.Name[:])
	binary.NativeEndian.PutUint32(b[32:], info.Size)
	if err := l.get(getEntries, unsafe.Pointer(&buf[0]), uintptr(head+int(info.Size))); err != nil {
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("it changed meanwhile: %w", err)
		}
		return nil, err
	}
	return countUses(b[head:head+int(info.Size)], l.family), nil
}

// countUses walks over struct ipt_entry, or ip6t_entry. A chain of ours begins with an entry whose target is called
// ERROR and bears the chain's name; its last entry is one that nobody wrote.
func countUses(entries []byte, family ipset.Family) map[string]int {
	targetOffset := 88 // struct ipt_ip, and the unsigned int nfcache
	if family == ipset.IPv6 {
		targetOffset = 140 // struct ip6t_ip6, likewise
	}
	heads, led := map[int]string{}, map[int]int{}
	uses := map[string]int{}
	chain := ""
	for at := 0; at+targetOffset+4 <= len(entries); {
		target := at + int(binary.NativeEndian.Uint16(entries[at+targetOffset:]))
		next := at + int(binary.NativeEndian.Uint16(entries[at+targetOffset+2:]))
		if next <= at || target+36 > len(entries) {
			break
		}
		// struct xt_entry_target: a length, the name, a revision, and data from byte 32 on.
		switch name := unix.ByteSliceToString(entries[target+2 : target+31]); name {
		case "ERROR":
			if chain != "" {
				uses[chain]-- // the last entry of the chain before
			}
			chain = unix.ByteSliceToString(entries[target+32 : min(target+62, len(entries))])
			heads[next] = chain
		default:
			uses[chain]++
			if verdict := int32(binary.NativeEndian.Uint32(entries[target+32:])); name == "" && verdict >= 0 {
				led[int(verdict)]++
			}
		}
		at = next
	}
	for to, n := range led {
		uses[heads[to]] += n
	}
	return uses
}
