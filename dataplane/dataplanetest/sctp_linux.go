package dataplanetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
)

// These are the types of the chunks that open an association (RFC 9260), and the type of the cookie
// parameter that the client echoes.
const (
	sctpInit       = 1
	sctpInitAck    = 2
	sctpCookieEcho = 10
	sctpCookieAck  = 11
	sctpCookie     = 7

	// These are the verification tags that the server and the client choose.
	sctpServerTag = 1
	sctpClientTag = 2
)

// sctpPacket is an SCTP packet with one chunk.
type sctpPacket struct {
	from, to uint16
	tag      uint32 // tag that the packet's receiver has chosen; 0 in INIT
	chunk    byte
	own      uint32 // tag that the packet's sender has chosen
	cookie   string
}

// testSCTP opens SCTP associations to VIPs and node ports. They must reach all servers, and must
// continue while their server drains. If the kernel has no SCTP sockets, the test itself sends the
// first packets of each association.
func testSCTP(r *rig) {
	if !slices.Contains(r.caps.Protocols, balancer.SCTP) {
		r.Skipf("%s does not serve sctp", r.caps.Mode)
	}
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.Scheduler = balancer.RoundRobin
	web.Ports = []balancer.Port{{Name: "sctp", Port: vipPort, Protocol: balancer.SCTP, TargetPort: targetPort, NodePort: nodePort}}
	if lab.HasSCTP() {
		checkAssociations(r, web)
		return
	}
	for _, s := range r.w.servers {
		answerSCTP(r, s)
	}
	r.apply(web)
	r.eachOf(balancer.SCTP, func(r *rig, key balancer.Key) {
		forVIPAndNodePort(r, key, func(from *lab.NS, key balancer.Key) {
			met := map[string]bool{}
			for i := range 2 * len(r.w.servers) {
				name, err := openSCTP(r, from, key, uint16(40000+100*len(met)+i)+r.s.ports.next()%1000)
				if err != nil {
					r.Fatalf("%s opens an association to %s: %v", from.Name, key, err)
				}
				met[name] = true
			}
			if len(met) != len(r.w.servers) {
				r.Errorf("%s opens associations to %s: answers from %v, want answers from all servers", from.Name, key, met)
			}
		})
	})
	checkKernelState(r, "with SCTP")
}

// checkAssociations opens associations with the kernel's SCTP sockets, and checks that they
// continue while their server drains.
func checkAssociations(r *rig, web *balancer.Service) {
	for _, s := range r.w.servers {
		for _, a := range s.addr {
			s.ns.Echo("sctp", s.name, netip.AddrPortFrom(a, targetPort))
		}
	}
	web.DrainTimeout = drainTime()
	r.apply(web)
	r.eachOf(balancer.SCTP, func(r *rig, key balancer.Key) {
		forVIPAndNodePort(r, key, func(from *lab.NS, key balancer.Key) { checkMeets(r, from, key, "s1", "s2", "s3") })
	})
	checkKernelState(r, "with SCTP")
	keys := keysOf(r.w.vip, balancer.SCTP)
	var leaving, staying []net.Conn
	for _, k := range keys {
		leaving, staying = append(leaving, openTo(r, "s1", k)), append(staying, openTo(r, "s2", k))
	}
	removed := time.Now()
	r.apply(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[1:]...) }))
	for _, k := range keys {
		checkMeets(r, r.w.client, k, "s2", "s3")
	}
	checkEndInTime(r, "a removed endpoint", keys, leaving, removed)
	for i, k := range keys {
		if err := alive(staying[i], atOnce); err != nil {
			r.Errorf("%s: error of an association with another endpoint = %v, want nil", k, err)
		}
	}
}

// answerSCTP makes a server answer INIT with INIT ACK, and COOKIE ECHO with COOKIE ACK. Its cookie
// contains the server's name.
func answerSCTP(r *rig, s *server) {
	for _, a := range s.addr {
		c := rawSCTP(r, s.ns, a)
		var running sync.WaitGroup
		running.Go(func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return // closed
				}
				p, err := readSCTP(buf[:n])
				answers := map[byte]byte{sctpInit: sctpInitAck, sctpCookieEcho: sctpCookieAck}
				if err != nil || answers[p.chunk] == 0 || p.to != targetPort {
					continue
				}
				answer := sctpPacket{from: p.to, to: p.from, tag: p.own, chunk: answers[p.chunk], own: sctpServerTag, cookie: s.name}
				_, _ = c.WriteTo(answer.bytes(), from) // if this fails, the client gets no answer until its deadline
			}
		})
		r.Cleanup(func() { _ = c.Close(); running.Wait() })
	}
}

func rawSCTP(r *rig, n *lab.NS, at netip.Addr) net.PacketConn {
	r.Helper()
	network := "ip4:132"
	if at.Is6() {
		network = "ip6:132"
	}
	c, err := n.ListenPacket(network, at.String())
	if err != nil {
		r.Fatal(err)
	}
	return c
}

// openSCTP sends INIT from a client port, and returns the name of the server that answers.
func openSCTP(r *rig, from *lab.NS, key balancer.Key, port uint16) (string, error) {
	r.Helper()
	return askSCTP(r, from, key, sctpPacket{from: port, to: key.Port.First(), chunk: sctpInit, own: sctpClientTag}, sctpInitAck, atOnce)
}

// askSCTP sends the packet ask, and waits for a packet whose chunk type is answer. It returns that
// packet's cookie, which is a server's name.
func askSCTP(r *rig, from *lab.NS, key balancer.Key, ask sctpPacket, answer byte, within time.Duration) (string, error) {
	r.Helper()
	c := rawSCTP(r, from, parseAddrs("0.0.0.0", "::").inFamilyOf(key.Addr))
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience(within))); err != nil {
		return "", err
	}
	if _, err := c.WriteTo(ask.bytes(), &net.IPAddr{IP: key.Addr.AsSlice()}); err != nil {
		return "", err
	}
	buf := make([]byte, 2048)
	for {
		n, sender, err := c.ReadFrom(buf)
		if err != nil {
			return "", err
		}
		p, err := readSCTP(buf[:n])
		a, _ := netip.AddrFromSlice(sender.(*net.IPAddr).IP)
		switch {
		case a.Unmap() != key.Addr || p.to != ask.from || p.chunk != answer: // the packet belongs to another test, or is not the answer
		case err != nil:
			return "", err
		case p.from != key.Port.First() || p.tag != ask.own:
			return "", fmt.Errorf("source port and tag of the answer = %d and %d, want %d and %d", p.from, p.tag, key.Port.First(), ask.own)
		default:
			return p.cookie, nil
		}
	}
}

// castagnoli is the table for SCTP's checksum (RFC 9260, appendix A). It is read-only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (p sctpPacket) bytes() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.from)
	b = binary.BigEndian.AppendUint16(b, p.to)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0) // checksum
	b = append(b, p.chunk, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, p.own)
	b = append(b, 0, 1, 0, 0)             // window
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1) // outbound and inbound streams, first sequence number
	length := len(b) - 12
	if p.cookie != "" {
		b = binary.BigEndian.AppendUint16(b, sctpCookie)
		b = binary.BigEndian.AppendUint16(b, uint16(4+len(p.cookie)))
		b = append(b, p.cookie...)
		length = len(b) - 12
		b = append(b, make([]byte, -len(b)&3)...)
	}
	binary.BigEndian.PutUint16(b[14:], uint16(length))
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// readSCTP decodes a packet that [sctpPacket.bytes] encoded. If only the checksum is wrong, it
// returns the packet and an error.
func readSCTP(b []byte) (sctpPacket, error) {
	if len(b) < 32 {
		return sctpPacket{}, errors.New("the packet is too short to open an association")
	}
	p := sctpPacket{
		from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]),
		chunk: b[12], own: binary.BigEndian.Uint32(b[16:]),
	}
	if end := 12 + int(binary.BigEndian.Uint16(b[14:])); end > 36 && end <= len(b) {
		p.cookie = string(b[36:end])
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	copied := slices.Clone(b)
	copy(copied[8:], []byte{0, 0, 0, 0})
	if want := crc32.Checksum(copied, castagnoli); sum != want {
		return p, fmt.Errorf("checksum = %08x, want %08x", sum, want)
	}
	return p, nil
}
