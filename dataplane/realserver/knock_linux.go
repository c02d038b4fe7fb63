package realserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// tries is the number of requests that Knock sends.
const tries = 3

// Knock requests a TCP connection from client to the target's VIP, as a gateway would forward it.
// It waits for an answer on the target's device, and aborts the connection. The kernel ignores the
// answer, because the answer comes from the VIP, which this host itself has.
func Knock(ctx context.Context, t Target, client netip.Addr, patience time.Duration) (Answer, error) {
	device, err := net.InterfaceByName(t.Device)
	if err != nil {
		return "", fmt.Errorf("reading interface %s: %w", t.Device, err)
	}
	k := knock{Target: t, device: device, client: netip.AddrPortFrom(client, uint16(32768+rand.N(28000))), seq: rand.Uint32()}
	protocol := unix.ETH_P_IP
	if client.Is6() {
		protocol = unix.ETH_P_IPV6
	}
	if k.conn, err = packet.Listen(device, packet.Raw, protocol, &packet.Config{Filter: fromVIP(t.VIP.Addr())}); err != nil {
		return "", fmt.Errorf("opening a socket on %s: %w", t.Device, err)
	}
	answer, err := k.ask(ctx, patience)
	aborted := k.send(tcpRST, k.seq+1)
	return answer, errors.Join(err, aborted, k.conn.Close())
}

// knock is a connection request.
type knock struct {
	Target
	device *net.Interface
	conn   *packet.Conn
	client netip.AddrPort
	seq    uint32
}

// ask sends requests until an answer arrives.
func (k *knock) ask(ctx context.Context, patience time.Duration) (Answer, error) {
	for range tries {
		if err := k.send(tcpSYN, k.seq); err != nil {
			return "", err
		}
		if answer, err := k.await(time.Now().Add(patience / tries)); answer != "" || err != nil {
			return answer, err
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
	}
	return Silence, nil
}

// await returns the answer that arrives before the deadline, or "".
func (k *knock) await(deadline time.Time) (Answer, error) {
	if err := k.conn.SetReadDeadline(deadline); err != nil {
		return "", err
	}
	var frame [256]byte
	for {
		n, _, err := k.conn.ReadFrom(frame[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "", nil
		case err != nil:
			return "", fmt.Errorf("receiving on %s: %w", k.Device, err)
		}
		if answer := k.answerIn(frame[:n]); answer != "" {
			return answer, nil
		}
	}
}

const tcpSYN, tcpRST, tcpACK = 2, 4, 16

func (k *knock) answerIn(frame []byte) Answer {
	const ethernet = 14
	if len(frame) < ethernet+20 {
		return ""
	}
	body := frame[ethernet:]
	at := int(body[0]&15) * 4 // the length of the IPv4 header
	protocol, to := body[9], 16
	if k.client.Addr().Is6() {
		at, protocol, to = 40, body[6], 24
	}
	if protocol != unix.IPPROTO_TCP || len(body) < at+20 {
		return ""
	}
	dst, _ := netip.AddrFromSlice(body[to : to+k.client.Addr().BitLen()/8])
	tcp := body[at:]
	if dst != k.client.Addr() || binary.BigEndian.Uint16(tcp) != k.VIP.Port() || binary.BigEndian.Uint16(tcp[2:]) != k.client.Port() || binary.BigEndian.Uint32(tcp[8:]) != k.seq+1 {
		return ""
	}
	switch flags := tcp[13]; {
	case flags&tcpRST != 0:
		return Refused
	case flags&(tcpSYN|tcpACK) == tcpSYN|tcpACK:
		return Accepted
	}
	return ""
}

// send sends a TCP segment without data to the server's MAC address.
func (k *knock) send(flags byte, seq uint32) error {
	tcp := binary.BigEndian.AppendUint16(nil, k.client.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, k.VIP.Port())
	tcp = binary.BigEndian.AppendUint32(tcp, seq)
	tcp = append(tcp, 0, 0, 0, 0, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	from, to := k.client.Addr().AsSlice(), k.VIP.Addr().AsSlice()
	pseudo := append(append([]byte{}, from...), to...)
	pseudo = binary.BigEndian.AppendUint16(append(pseudo, 0, unix.IPPROTO_TCP), uint16(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	protocol, header := uint16(unix.ETH_P_IP), []byte{0x45, 0, 0, byte(20 + len(tcp)), 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
	if k.client.Addr().Is6() {
		protocol, header = unix.ETH_P_IPV6, []byte{0x60, 0, 0, 0, 0, byte(len(tcp)), unix.IPPROTO_TCP, 64}
	}
	header = append(append(header, from...), to...)
	if k.client.Addr().Is4() {
		binary.BigEndian.PutUint16(header[10:], checksum(header))
	}
	frame := append(append([]byte{}, k.MAC...), k.device.HardwareAddr...)
	frame = append(append(binary.BigEndian.AppendUint16(frame, protocol), header...), tcp...)
	if _, err := k.conn.WriteTo(frame, &packet.Addr{HardwareAddr: k.MAC}); err != nil {
		return fmt.Errorf("sending to %s on %s: %w", k.MAC, k.Device, err)
	}
	return nil
}

// checksum returns the Internet checksum of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// fromVIP returns a filter that accepts packets from an address.
func fromVIP(a netip.Addr) []bpf.RawInstruction {
	source, b := uint32(14+12), a.AsSlice()
	if a.Is6() {
		source = 14 + 8
	}
	var program []bpf.Instruction
	words := len(b) / 4
	for i := range words {
		program = append(program, bpf.LoadAbsolute{Off: source + uint32(i)*4, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(b[i*4:]), SkipTrue: uint8(2*(words-i-1) + 1)})
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: 1 << 16}, bpf.RetConstant{Val: 0}))
	if err != nil {
		panic(err) // all jumps are short
	}
	return raw
}
