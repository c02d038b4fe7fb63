package xtables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// hooks is NF_INET_NUMHOOKS (linux/netfilter.h).
const hooks = 5

// hookName returns the kernel's chain for a hook, in the order of enum nf_inet_hooks
// (linux/netfilter.h).
func hookName(hook int) string {
	return [hooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}[hook]
}

// These are the socket options in linux/netfilter_ipv4/ip_tables.h. ip6_tables.h has the same
// numbers.
const (
	optGetInfo    = 64 // IPT_SO_GET_INFO
	optGetEntries = 65 // IPT_SO_GET_ENTRIES
)

// tableNameLen is XT_TABLE_MAXNAMELEN (linux/netfilter/x_tables.h).
const tableNameLen = 32

// getInfo is struct ipt_getinfo and struct ip6t_getinfo.
type getInfo struct {
	name       [tableNameLen]byte
	validHooks uint32
	hookEntry  [hooks]uint32
	underflow  [hooks]uint32
	numEntries uint32
	size       uint32
}

// legacySocket reads legacy tables in the network namespace in which it was opened. Reading an
// unused table loads it.
type legacySocket struct {
	fd     int
	family inet.Family
	level  uintptr
}

func openLegacy(family inet.Family) (*legacySocket, error) {
	s := &legacySocket{family: family, level: unix.SOL_IP}
	af := unix.AF_INET
	if family == inet.IPv6 {
		af, s.level = unix.AF_INET6, unix.SOL_IPV6
	}
	var err error
	if s.fd, err = unix.Socket(af, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
		return nil, fmt.Errorf("opening a raw socket: %w", err)
	}
	return s, nil
}

func (s *legacySocket) close() { _ = unix.Close(s.fd) }

// get calls getsockopt for an option that also reads a request from b.
func (s *legacySocket) get(option uintptr, b unsafe.Pointer, size int) error {
	n := uint32(size)
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), s.level, option, uintptr(b), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return e
	}
	return nil
}

func (s *legacySocket) info(table string) (getInfo, error) {
	var i getInfo
	copy(i.name[:tableNameLen-1], table)
	if err := s.get(optGetInfo, unsafe.Pointer(&i), int(unsafe.Sizeof(i))); err != nil {
		return getInfo{}, fmt.Errorf("asking iptables-legacy for table %s: %w", table, err)
	}
	return i, nil
}

func (i *getInfo) stamp() Stamp {
	s := Stamp{Entries: int(i.numEntries), Bytes: int(i.size)}
	copy(s.layout[:hooks], i.hookEntry[:])
	copy(s.layout[hooks:], i.underflow[:])
	return s
}

func legacyStamp(family inet.Family, table string) (Stamp, error) {
	s, err := openLegacy(family)
	if err != nil {
		return Stamp{}, err
	}
	defer s.close()
	i, err := s.info(table)
	if err != nil {
		return Stamp{}, err
	}
	return i.stamp(), nil
}

// entriesAt is the offset of the entries in struct ipt_get_entries. They follow the table's name
// and a size, with alignment.
const entriesAt = (tableNameLen + 4 + 7) &^ 7

// attempts is how often a table is read while it keeps changing during each read.
const attempts = 10

// errInterrupted means that rules changed while they were being read.
var errInterrupted = fmt.Errorf("the rules changed while they were being listed: %w", unix.EAGAIN)

// readLegacy calls the function read with a copy of the table. The copy uses as much memory as the
// table: 30 MB for 114,000 rules.
func readLegacy(family inet.Family, table string, read func(b *blob) error) error {
	if runtime.GOARCH == "386" { // 386 uses a different alignment
		return &UnsupportedError{Feature: "reading the tables of iptables-legacy", Need: "use a 64-bit build, or the nft backend"}
	}
	s, err := openLegacy(family)
	if err != nil {
		return err
	}
	defer s.close()
	for range attempts {
		err = s.read(table, read)
		if !errors.Is(err, errInterrupted) {
			return err
		}
	}
	return err
}

func (s *legacySocket) read(table string, read func(b *blob) error) error {
	info, err := s.info(table)
	if err != nil {
		return err
	}
	// The buffer is not on the heap, because a check would then trigger a garbage collection, and
	// the heap would keep the memory.
	buf, err := unix.Mmap(-1, 0, entriesAt+int(info.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("allocating memory for table %s of %d bytes: %w", table, info.size, err)
	}
	defer func() { _ = unix.Munmap(buf) }()
	copy(buf[:tableNameLen-1], table)
	binary.NativeEndian.PutUint32(buf[tableNameLen:], info.size)
	err = s.get(optGetEntries, unsafe.Pointer(&buf[0]), len(buf))
	if errors.Is(err, unix.EAGAIN) { // the table's size has changed
		return errInterrupted
	}
	if err != nil {
		return fmt.Errorf("reading table %s of iptables-legacy: %w", table, err)
	}
	after, err := s.info(table)
	if err != nil {
		return err
	}
	if after != info {
		return errInterrupted
	}
	return read(&blob{entries: buf[entriesAt:], info: info, layout: layoutOf(s.family)})
}

// entryLayout holds the offsets of the fields of struct ipt_entry and struct ip6t_entry, with
// 8-byte alignment.
type entryLayout struct{ targetOffset, nextOffset, counters, size int }

func layoutOf(family inet.Family) entryLayout {
	if family == inet.IPv6 {
		return entryLayout{targetOffset: 140, nextOffset: 142, counters: 152, size: 168}
	}
	return entryLayout{targetOffset: 88, nextOffset: 90, counters: 96, size: 112}
}

// These constants belong to struct xt_entry_target (linux/netfilter/x_tables.h).
const (
	targetNameAt  = 2
	targetNameLen = 29 // XT_EXTENSION_MAXNAMELEN
	targetLen     = 32 // followed by a verdict or the name of a chain
)

// blob is a legacy table in the kernel's format, which is a sequence of chains. A built-in chain
// starts at its hook's entry. Any other chain starts after an entry with the target ERROR, which
// contains the chain's name. Each chain's last entry is its policy. A final ERROR ends the table.
type blob struct {
	entries []byte
	info    getInfo
	layout  entryLayout
}

// rule is an entry of a blob.
type rule struct {
	at     int    // offset of the entry
	count  uint64 // number of matched packets
	jumpTo int    // offset of the chain to which it jumps, or -1
	// onward reports whether the rule has no target, so packets continue with the next rule.
	onward bool
}

// errBlob means that a table's layout is unknown.
var errBlob = errors.New("reading a table of iptables-legacy: unexpected layout")

// walk calls the function chain at the start of each chain, and the function rule for each of its
// rules. name is valid until chain returns.
func (b *blob) walk(chain func(name []byte, at int), rule func(r rule)) error {
	last := -1 // offset of the previous entry in the same chain
	for at := 0; at < len(b.entries); {
		target, next, ok := b.entry(at)
		if !ok {
			return errBlob
		}
		if name, header := errorName(b.entries[target:next]); header {
			if next < len(b.entries) {
				chain(name, next)
			}
			last = -1
		} else {
			if name := b.hookAt(at); name != "" {
				chain([]byte(name), at)
				last = -1
			}
			if last >= 0 {
				rule(b.rule(last))
			}
			last = at
		}
		at = next
	}
	return nil
}

// chains returns the table's chains. For each chain, it returns the number of its rules plus the
// number of rules that jump to it.
func (b *blob) chains() (chains []nft.Found, err error) {
	begin := map[int]int{} // maps the offset of a chain's rules to the chain's index
	var leads []int
	err = b.walk(func(name []byte, at int) {
		begin[at] = len(chains)
		chains = append(chains, nft.Found{Name: string(name)})
	}, func(r rule) {
		chains[len(chains)-1].Use++
		if r.jumpTo >= 0 {
			leads = append(leads, r.jumpTo)
		}
	})
	for _, to := range leads {
		if i, known := begin[to]; known {
			chains[i].Use++
		}
	}
	return chains, err
}

// entry returns the offsets of an entry's target and of the next entry.
func (b *blob) entry(at int) (target, next int, ok bool) {
	if at+b.layout.size+targetLen > len(b.entries) {
		return 0, 0, false
	}
	target = at + int(binary.NativeEndian.Uint16(b.entries[at+b.layout.targetOffset:]))
	next = at + int(binary.NativeEndian.Uint16(b.entries[at+b.layout.nextOffset:]))
	return target, next, target >= at+b.layout.size && target+targetLen <= next && next <= len(b.entries)
}

func (b *blob) hookAt(at int) string {
	for h := range hooks {
		if b.info.validHooks&(1<<h) != 0 && int(b.info.hookEntry[h]) == at {
			return hookName(h)
		}
	}
	return ""
}

func (b *blob) rule(at int) rule {
	target, next, _ := b.entry(at)
	r := rule{
		at:     at,
		count:  binary.NativeEndian.Uint64(b.entries[at+b.layout.counters:]),
		jumpTo: -1,
	}
	if b.entries[target+targetNameAt] == 0 && target+targetLen+4 <= next { // the standard target has an empty name
		verdict := int(int32(binary.NativeEndian.Uint32(b.entries[target+targetLen:])))
		if r.onward = verdict == next; verdict >= 0 && !r.onward {
			r.jumpTo = verdict
		}
	}
	return r
}

// errorName returns the chain's name in an ERROR target. ok is false for other targets.
func errorName(target []byte) (name []byte, ok bool) {
	if string(cString(target[targetNameAt:targetNameAt+targetNameLen])) != "ERROR" {
		return nil, false
	}
	return cString(target[targetLen:]), true
}

// cString returns the bytes before the first NUL.
func cString(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
