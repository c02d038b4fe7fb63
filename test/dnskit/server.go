package dnskit

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// Fault is a kind of wrong answer from a Server.
type Fault string

// These are the kinds of faults.
const (
	// None is a correct answer. It is truncated if it is too large for UDP.
	None Fault = ""
	// Failure, Refusal and Missing are the answers SERVFAIL, REFUSED and NXDOMAIN.
	Failure Fault = "SERVFAIL"
	Refusal Fault = "REFUSED"
	Missing Fault = "NXDOMAIN"
	// Silence is no answer.
	Silence Fault = "silence"
	// Empty is an answer without records.
	Empty Fault = "empty"
	// WrongID is two answers with a wrong ID, and no correct answer.
	WrongID Fault = "wrong ID"
	// WrongFirst is an answer with a wrong ID and a wrong address, followed by the correct answer.
	WrongFirst Fault = "wrong ID first"
	// OtherQuestion is an answer to another question.
	OtherQuestion Fault = "other question"
	// Garbage is an answer whose bytes are not a DNS message.
	Garbage Fault = "garbage"
	// Truncation is an answer over UDP with the truncated flag and without records.
	Truncation Fault = "truncation"
	// TCPRefused is like Truncation, but also closes TCP connections without an answer.
	TCPRefused Fault = "no TCP"
	// NoEDNS is the answer FORMERR to questions with EDNS.
	NoEDNS Fault = "no EDNS"
	// HalfGlue is an answer without the IPv6 addresses of hosts in SRV records.
	HalfGlue Fault = "half glue"
)

// Server is a DNS server over UDP and TCP.
type Server struct {
	// Address is ADDRESS:PORT.
	Address string

	mu      sync.Mutex // guards the fields below
	records map[string][]dns.RR
	faults  map[string]Fault
	lazy    bool
	asked   map[string]int
	overTCP int
}

// New starts a server that runs until the test ends. address is ADDRESS:PORT, or ADDRESS for any
// free port.
func New(t testing.TB, address string) *Server {
	t.Helper()
	s := &Server{records: map[string][]dns.RR{}, faults: map[string]Fault{}, asked: map[string]int{}}
	packets, connections := listen(t, address)
	s.Address = packets.LocalAddr().String()
	var serving sync.WaitGroup
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: s}, {Listener: connections, Handler: s}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		serving.Go(func() { _ = server.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return s
}

// listen opens the same port for UDP and TCP.
func listen(t testing.TB, address string) (net.PacketConn, net.Listener) {
	t.Helper()
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(address, "0")
	}
	var problems error
	for range 20 { // another program may have the port for TCP
		packets, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		connections, err := net.Listen("tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, connections
		}
		problems = errors.Join(problems, err, packets.Close())
	}
	t.Fatal(problems)
	return nil, nil
}

// Set replaces all records with lines in zone file format, with absolute names.
func (s *Server) Set(t testing.TB, lines ...string) {
	t.Helper()
	records := map[string][]dns.RR{}
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.ToLower(rr.Header().Name)
		records[name] = append(records[name], rr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = records
}

// Break makes the server answer questions about name with a fault. The name "*" means all names
// without their own fault. A type may precede the name, as in "AAAA db.example.org.".
func (s *Server) Break(name string, fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[name] = fault
}

// Lazy makes the server omit the records of an alias's target.
func (s *Server) Lazy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lazy = true
}

// Asked returns the number of questions about name.
func (s *Server) Asked(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

// OverTCP returns the number of questions over TCP.
func (s *Server) OverTCP() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overTCP
}

// ServeDNS answers one question.
func (s *Server) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	udp := w.LocalAddr().Network() == "udp"
	q := question.Question[0]
	reply, fault := s.reply(question, udp)
	edns := question.IsEdns0()
	switch fault {
	case Silence:
		return
	case Failure, Refusal, Missing:
		reply.Answer, reply.Rcode = nil, dns.StringToRcode[string(fault)]
	case Empty:
		reply.Answer = nil
	case WrongID, WrongFirst:
		wrong := reply.Copy()
		wrong.Id++
		wrong.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(203, 0, 113, 66)}}
		_, _ = w.Write(pack(wrong))
		_, _ = w.Write(pack(wrong))
		if fault == WrongID {
			return
		}
	case OtherQuestion:
		reply.Question[0].Name = "other.example.org."
	case Garbage:
		_, _ = w.Write([]byte("garbage"))
		return
	case Truncation, TCPRefused:
		if udp {
			reply.Answer, reply.Extra, reply.Truncated = nil, nil, true
		} else if fault == TCPRefused {
			_ = w.Close()
			return
		}
	case HalfGlue:
		reply.Extra = slices.DeleteFunc(reply.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeAAAA })
	case NoEDNS:
		if edns != nil {
			reply.Answer, reply.Rcode = nil, dns.RcodeFormatError
		}
	}
	if edns != nil && fault != NoEDNS {
		reply.SetEdns0(dns.DefaultMsgSize, false)
	}
	if size := dns.MinMsgSize; udp {
		if edns != nil {
			size = int(edns.UDPSize())
		}
		reply.Truncate(size)
	}
	_ = w.WriteMsg(reply)
}

func pack(m *dns.Msg) []byte {
	text, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return text
}

// reply returns the correct answer, and the fault to apply to it.
func (s *Server) reply(question *dns.Msg, udp bool) (*dns.Msg, Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := question.Question[0]
	name := strings.ToLower(q.Name)
	s.asked[name]++
	if !udp {
		s.overTCP++
	}
	reply := new(dns.Msg).SetReply(question)
	reply.Compress = true
	if reply.Answer = s.find(name, q.Qtype); len(s.records[name]) == 0 {
		reply.Rcode = dns.RcodeNameError
	}
	for _, rr := range reply.Answer {
		if srv, is := rr.(*dns.SRV); is && !s.lazy {
			host := strings.ToLower(srv.Target)
			for _, fault := range []string{host, "A " + host, "AAAA " + host} {
				if s.faults[fault] != None {
					host = ""
				}
			}
			for _, rr := range s.records[host] {
				if kind := rr.Header().Rrtype; kind == dns.TypeA || kind == dns.TypeAAAA {
					reply.Extra = append(reply.Extra, rr)
				}
			}
		}
	}
	for _, key := range []string{dns.TypeToString[q.Qtype] + " " + name, name, "*"} {
		if fault, ok := s.faults[key]; ok {
			return reply, fault
		}
	}
	return reply, None
}

// find returns the records of a kind at name, and the aliases that lead to them.
func (s *Server) find(name string, kind uint16) (found []dns.RR) {
	for range 30 {
		next := ""
		for _, rr := range s.records[name] {
			if alias, is := rr.(*dns.CNAME); is {
				next = strings.ToLower(alias.Target)
				found = append(found, rr)
			} else if rr.Header().Rrtype == kind {
				found = append(found, rr)
			}
		}
		if name = next; next == "" || s.lazy {
			break
		}
	}
	return found
}
