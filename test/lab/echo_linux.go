package lab

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"vipd/test/program"
	"vipd/test/wait"
)

// Hello is the message that echo servers answer with an Answer.
const Hello = "who\n"

// Answer is an echo server's reply: its name, and the addresses that it sees.
type Answer struct {
	// Server is the name of the server.
	Server string
	// Client is the source of the connection or datagram, as the server sees it.
	Client netip.AddrPort
	// Local is the destination of the connection or datagram, as the server sees it.
	Local netip.AddrPort
}

// Server is an echo server. Over TCP and SCTP it answers the first line of a connection with an
// Answer, echoes everything after that line, and half-closes when the client does. Over UDP it
// answers Hello with an Answer and echoes every other datagram.
type Server struct {
	// Name is the server's name, and Addr its address.
	Name string
	Addr netip.AddrPort

	close   func()
	running sync.WaitGroup
	mu      sync.Mutex
	clients map[netip.AddrPort]int
	open    map[net.Conn]bool // nil once closed
	count   int
}

// Echo starts an echo server that runs until the test ends. network is tcp, udp or sctp.
func (n *NS) Echo(network, name string, at netip.AddrPort) *Server {
	n.lab.t.Helper()
	s := &Server{Name: name, Addr: at, clients: map[netip.AddrPort]int{}, open: map[net.Conn]bool{}}
	var serve func()
	var err error
	switch network {
	case "tcp":
		var ln net.Listener
		if ln, err = n.Listen("tcp", at.String()); err == nil {
			s.close, serve = func() { _ = ln.Close() }, func() { s.accept(ln) }
		}
	case "udp":
		var pc net.PacketConn
		if pc, err = n.ListenPacket("udp", at.String()); err == nil {
			s.close, serve = func() { _ = pc.Close() }, func() { s.serveUDP(pc.(*net.UDPConn)) }
		}
	case "sctp":
		var ln net.Listener
		if ln, err = n.ListenSCTP(at); err == nil {
			s.close, serve = func() { _ = ln.Close() }, func() { s.accept(ln) }
		}
	default:
		err = fmt.Errorf("network %q is neither tcp, udp nor sctp", network)
	}
	if err != nil {
		n.lab.t.Fatalf("starting echo server %s in %s: %v", name, n.Name, err)
	}
	s.running.Go(serve)
	n.lab.t.Cleanup(s.Close)
	return s
}

// Close stops the server and resets its connections. It may be called more than once.
func (s *Server) Close() {
	program.Unshared(func() {
		s.close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.open {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
		s.open = nil
	})
	s.running.Wait()
}

// Accepted returns the number of accepted connections or, over UDP, of datagrams with Hello.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Clients returns the number of distinct client addresses and ports.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// Open returns the number of open TCP connections.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Conn returns the server's end of a client's TCP connection.
func (s *Server) Conn(client netip.AddrPort) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connLocked(client)
}

func (s *Server) connLocked(client netip.AddrPort) (net.Conn, error) {
	for c := range s.open {
		if addrPort(c.RemoteAddr()) == client {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%s has no connection of %s", s.Name, client)
}

// HangUp closes the server's end of a client's TCP connection. If the client closes its end after
// that, the connection is in TIME_WAIT at the server.
func (s *Server) HangUp(client netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connLocked(client)
	if err != nil {
		return err
	}
	delete(s.open, c) // the client may reuse its port before the serving goroutine notices
	return c.Close()
}

func (s *Server) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return // closed
		}
		if !s.saw(c, addrPort(c.RemoteAddr())) {
			_ = c.Close()
			return
		}
		s.running.Go(func() {
			s.serveTCP(c.(*net.TCPConn))
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
			_ = c.Close()
		})
	}
}

// saw records a client, and reports whether the server is still open.
func (s *Server) saw(c net.Conn, client netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.clients[client]++
	if s.open == nil {
		return false
	}
	if c != nil {
		s.open[c] = true
	}
	return true
}

func (s *Server) serveTCP(c *net.TCPConn) {
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		return
	}
	if _, err := io.WriteString(c, s.answer(addrPort(c.RemoteAddr()), addrPort(c.LocalAddr()))); err != nil {
		return
	}
	if _, err := io.Copy(c, r); err == nil {
		_ = c.CloseWrite()
	}
}

func (s *Server) serveUDP(pc *net.UDPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			return // closed
		}
		reply := buf[:n]
		if string(reply) == Hello {
			from := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			s.saw(nil, from)
			reply = []byte(s.answer(from, s.Addr))
		}
		_, _ = pc.WriteToUDPAddrPort(reply, from) // an error means that the client has closed
	}
}

func (s *Server) answer(client, local netip.AddrPort) string {
	return fmt.Sprintf("%s %s %s\n", s.Name, client, local)
}

// Ask sends Hello to an echo server over TCP or UDP, and returns its answer. It waits up to thirty
// seconds over TCP and ten seconds over UDP, scaled by wait.Scaled.
func Ask(c net.Conn) (Answer, error) {
	within := 10 * time.Second
	if _, ok := c.(*net.TCPConn); ok {
		within = 30 * time.Second
	}
	return AskWithin(c, wait.Scaled(within))
}

// AskWithin is like Ask, but waits at most for the duration within, which is not scaled. Callers
// often use it to prove that no answer arrives.
func AskWithin(c net.Conn, within time.Duration) (Answer, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return Answer{}, err
	}
	if _, err := io.WriteString(c, Hello); err != nil {
		return Answer{}, err
	}
	var line []byte
	for buf := make([]byte, 512); !strings.HasSuffix(string(line), "\n"); {
		n, err := c.Read(buf)
		if line = append(line, buf[:n]...); err != nil {
			return Answer{}, err
		}
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return Answer{}, err
	}
	return parseAnswer(string(line))
}

func parseAnswer(line string) (Answer, error) {
	parts := strings.Fields(line)
	if len(parts) != 3 {
		return Answer{}, fmt.Errorf("%q is no answer of an echo server", line)
	}
	client, err := netip.ParseAddrPort(parts[1])
	if err != nil {
		return Answer{}, fmt.Errorf("reading answer %q: %w", line, err)
	}
	local, err := netip.ParseAddrPort(parts[2])
	if err != nil {
		return Answer{}, fmt.Errorf("reading answer %q: %w", line, err)
	}
	return Answer{parts[0], client, local}, nil
}

// addrPort converts a TCP or UDP address, and unmaps IPv4.
func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
