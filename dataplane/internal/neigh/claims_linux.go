package neigh

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Claim is a frame with which another host claims an address, or checks whether the address is in
// use before claiming it.
type Claim struct {
	Addr netip.Addr
	MAC  net.HardwareAddr
	// Asks reports whether the frame is only a probe, which means that the host does not use the
	// address yet.
	Asks bool
}

// Claims calls tell for each claim that is received on the link with this index, until ctx is done.
// It ignores claims from the link's own MAC address. If the list "of" is not empty, the kernel
// drops most claims to other addresses, but not all. If ready is not nil, it is called once when
// Claims starts receiving. Calls to tell may overlap.
func Claims(ctx context.Context, link int, of []netip.Addr, ready func(), tell func(Claim)) error {
	device, err := net.InterfaceByIndex(link)
	if err != nil {
		return fmt.Errorf("reading interface %d: %w", link, err)
	}
	var conns []*packet.Conn
	for _, protocol := range []int{unix.ETH_P_ARP, unix.ETH_P_IPV6} {
		only := neighbourMessages()
		if protocol == unix.ETH_P_ARP {
			only = senders(of)
		}
		c, err := packet.Listen(device, packet.Raw, protocol, &packet.Config{Filter: only})
		if err != nil {
			for _, open := range conns {
				err = errors.Join(err, open.Close())
			}
			return fmt.Errorf("listening on %s: %w", device.Name, err)
		}
		conns = append(conns, c)
	}
	if ready != nil {
		ready()
	}
	errs := make([]error, len(conns))
	var readers sync.WaitGroup
	for i, c := range conns {
		readers.Go(func() { errs[i] = read(ctx, c, device.HardwareAddr, tell) })
	}
	readers.Wait()
	for _, c := range conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// neighbourMessages returns a filter that accepts only the NDP messages that claimIn parses, so the
// kernel does not copy other IPv6 packets.
func neighbourMessages() []bpf.RawInstruction {
	const nextHeader, icmpType = 14 + 6, 14 + 40
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: nextHeader, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmp6, SkipTrue: 3},
		bpf.LoadAbsolute{Off: icmpType, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: neighbourSolicitation, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: neighbourAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 1 << 16},
	})
	if err != nil {
		panic(err) // the program is constant
	}
	return program
}

// senders returns a filter that accepts ARP packets from senders with these IPv4 addresses. If the
// list is empty or too long, the filter accepts all ARP packets.
func senders(of []netip.Addr) []bpf.RawInstruction {
	const sender, most = 14 + 14, 100
	if len(of) == 0 || len(of) > most {
		return nil
	}
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: sender, Size: 4}}
	for i, a := range of {
		if a.Is4() {
			b := a.As4()
			program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(b[:]), SkipTrue: uint8(len(of) - i)})
		} else {
			program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0}) // keeps the program's length
		}
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: 1 << 16}))
	if err != nil {
		panic(err) // all jumps are short
	}
	return raw
}

// maxWaiting is the maximum number of frames that are read after ctx is done. The socket holds
// fewer frames, but more may arrive in the meantime.
const maxWaiting = 1000

// read reports the claims on a socket until ctx is done. It then reports claims that are still
// queued, because a busy process may not have read them yet.
func read(ctx context.Context, c *packet.Conn, own net.HardwareAddr, tell func(Claim)) error {
	raw, err := c.SyscallConn()
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	var frame [256]byte
	take := func(n int) {
		claim, ok := claimIn(frame[:n])
		if !ok || bytes.Equal(claim.MAC, own) {
			return
		}
		if own = current(c, own); !bytes.Equal(claim.MAC, own) {
			tell(claim)
		}
	}
	for err == nil {
		var n int
		if n, _, err = c.ReadFrom(frame[:]); err == nil {
			take(n)
		}
	}
	if ctx.Err() == nil || raw == nil {
		return fmt.Errorf("listening for ARP and NDP messages: %w", err)
	}
	return raw.Control(func(fd uintptr) {
		for range maxWaiting {
			n, err := unix.Read(int(fd), frame[:])
			if err != nil && err != unix.EINTR {
				return // no more queued frames
			}
			take(max(n, 0))
		}
	})
}

// claimIn returns the claim in an Ethernet frame, or false if the frame is not a claim.
func claimIn(frame []byte) (Claim, bool) {
	const header, ip6 = 14, 40
	if len(frame) < header {
		return Claim{}, false
	}
	mac, body := append(net.HardwareAddr(nil), frame[6:12]...), frame[header:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		if len(body) < 28 || body[4] != 6 || body[5] != 4 {
			return Claim{}, false
		}
		sender, target := netip.AddrFrom4([4]byte(body[14:18])), netip.AddrFrom4([4]byte(body[24:28]))
		asks := sender.IsUnspecified() // a probe (RFC 5227)
		if asks {
			sender = target
		}
		return Claim{sender, append(net.HardwareAddr(nil), body[8:14]...), asks}, true
	case unix.ETH_P_IPV6:
		if len(body) < ip6+24 || body[6] != icmp6 || body[7] != 255 {
			return Claim{}, false
		}
		message, from := body[ip6:], netip.AddrFrom16([16]byte(body[8:24]))
		target := netip.AddrFrom16([16]byte(message[8:24]))
		switch {
		case message[0] == neighbourAdvertisement, message[0] == neighbourSolicitation && from.IsUnspecified():
			return Claim{target, mac, message[0] == neighbourSolicitation}, true
		}
	}
	return Claim{}, false
}
