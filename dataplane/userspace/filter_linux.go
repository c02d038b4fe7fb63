package userspace

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// dropsClients reports whether a socket filter can silently drop clients' packets.
const dropsClients = true

// Classic BPF loads data at these offsets. They are relative to the network header or the packet's
// metadata.
const (
	networkHeader = ^uint32(0x100000) + 1   // SKF_NET_OFF
	interfaceAt   = ^uint32(0x1000) + 1 + 8 // SKF_AD_OFF + SKF_AD_IFINDEX
	loopback      = 1                       // the index of lo, in every network namespace
	// maxInstructions is the maximum length of a classic filter in the kernel.
	maxInstructions = 4096
)

// filter restricts the socket to clients that c allows. Established connections retain the filter
// with which they were accepted.
func filter(fd uintptr, c *config) error {
	program := filterProgram(c)
	if program == nil {
		return detach(fd)
	}
	err := attach(fd, program)
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) {
		// The filter exceeds net.core.optmem_max, which also counts the old filter, or it needs
		// root. The old filter must be removed in any case, because it allows other clients.
		if err := detach(fd); err != nil {
			return err
		}
		if err = attach(fd, program); err != nil && c.serves {
			return nil // clients are checked after the accept
		}
	}
	return err
}

func attach(fd uintptr, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return err
	}
	code := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		code[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
}

func detach(fd uintptr) error {
	err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if errors.Is(err, unix.ENOENT) { // there was no filter
		return nil
	}
	return err
}

// canFilter reports whether this process may filter TCP sockets. Newer kernels (such as 6.18)
// require privileges to filter TCP sockets, but not UDP sockets.
func canFilter() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return attach(uintptr(fd), []bpf.Instruction{bpf.RetConstant{Val: 0}}) == nil
}

// filterProgram returns the filter for c, or nil if every packet may pass.
func filterProgram(c *config) []bpf.Instruction {
	var keep, drop bpf.Instruction = bpf.RetConstant{Val: 1 << 31}, bpf.RetConstant{Val: 0}
	if !c.serves && c.NoEndpoints == balancer.DropClients && c.Proto == balancer.TCP {
		return []bpf.Instruction{drop}
	}
	if len(c.Sources) == 0 {
		return nil
	}
	// The node's own connections arrive on lo, regardless of their source address.
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: interfaceAt, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: loopback, SkipTrue: 1},
		keep,
	}
	for _, p := range c.Sources {
		if p.Addr().Is4() == c.Addr.Is4() {
			program = append(program, matchSource(p, keep)...)
		}
	}
	if len(program) >= maxInstructions {
		return nil // clients are checked after the accept
	}
	return append(program, drop)
}

// matchSource returns instructions that execute the instruction then if a packet's source is in p,
// and otherwise continue after the last one. They compare the address word by word.
func matchSource(p netip.Prefix, then bpf.Instruction) []bpf.Instruction {
	addr, at := p.Masked().Addr().AsSlice(), networkHeader+12
	if p.Addr().Is6() {
		at = networkHeader + 8
	}
	var code []bpf.Instruction
	words := (p.Bits() + 31) / 32
	for i := range words {
		code = append(code, bpf.LoadAbsolute{Off: at + uint32(4*i), Size: 4})
		if bits := p.Bits() - 32*i; bits < 32 {
			code = append(code, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(0) << (32 - bits)})
		}
		code = append(code, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(addr[4*i:])})
	}
	code = append(code, then)
	for i, instruction := range code { // a mismatch jumps behind the last instruction
		if jump, ok := instruction.(bpf.JumpIf); ok {
			jump.SkipTrue = uint8(len(code) - i - 1)
			code[i] = jump
		}
	}
	return code
}
