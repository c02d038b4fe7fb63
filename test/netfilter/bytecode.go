package netfilter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
)

// parseBytecode reads "COUNT,CODE JT JF K,...", the form of tcpdump -ddd with commas.
func parseBytecode(text string) (match, error) {
	lines := strings.Split(strings.TrimSuffix(text, ","), ",")
	if count, err := strconv.Atoi(strings.TrimSpace(lines[0])); err != nil || count != len(lines)-1 {
		return nil, fmt.Errorf("bytecode of %q instructions has %d", lines[0], len(lines)-1)
	}
	var program []bpf.Instruction
	for _, line := range lines[1:] {
		var raw bpf.RawInstruction
		if _, err := fmt.Sscanf(line, "%d %d %d %d", &raw.Op, &raw.Jt, &raw.Jf, &raw.K); err != nil {
			return nil, fmt.Errorf("reading instruction %q: %w", line, err)
		}
		program = append(program, raw.Disassemble())
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return nil, fmt.Errorf("loading the bytecode: %w", err)
	}
	return func(f *flow) bool {
		n, err := vm.Run(f.bytes())
		if err != nil {
			panic(fmt.Sprintf("running the bytecode of %q: %v", text, err)) // NewVM has checked it
		}
		return n != 0
	}, nil
}

// bytes is the packet from its network header on, as it is now. Checksums are 0.
func (f *flow) bytes() []byte {
	transport := f.transport()
	if f.family.v6 {
		b := make([]byte, 40, 40+len(transport))
		b[0] = 6 << 4
		binary.BigEndian.PutUint16(b[4:], uint16(len(transport)))
		b[6], b[7] = f.protocolNumber(), 64
		putAddrs(b[8:], f.src, f.dst)
		return append(b, transport...)
	}
	b := make([]byte, 20, 20+len(transport))
	b[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(transport)))
	b[8], b[9] = 64, f.protocolNumber()
	putAddrs(b[12:], f.src, f.dst)
	return append(b, transport...)
}

func putAddrs(b []byte, src, dst netip.AddrPort) {
	n := copy(b, src.Addr().AsSlice())
	copy(b[n:], dst.Addr().AsSlice())
}

func (f *flow) protocolNumber() byte {
	switch f.proto {
	case TCP:
		return 6
	case UDP:
		return 17
	case SCTP:
		return 132
	case ICMP:
		return 1
	case ICMPv6:
		return 58
	}
	panic(fmt.Sprintf("protocol %q has no number", f.proto))
}

// transport is the header of the first packet of a connection.
func (f *flow) transport() []byte {
	b := make([]byte, 20)
	switch f.proto {
	case TCP:
		b[12] = 5 << 4
		if b[13] = 0x02; f.conn.State != New { // SYN, later ACK
			b[13] = 0x10
		}
	case UDP:
		b = b[:8]
		binary.BigEndian.PutUint16(b[4:], 8)
	case ICMP:
		b = b[:8]
		b[0] = 8 // echo request
	case ICMPv6:
		b = b[:8]
		b[0] = 128 // echo request
	}
	if f.proto.hasPorts() {
		binary.BigEndian.PutUint16(b[0:], f.src.Port())
		binary.BigEndian.PutUint16(b[2:], f.dst.Port())
	}
	return b
}
