package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"vipd/balancer"
)

// dns asks the definition's question, over UDP unless the port is a TCP one. Without an expected answer, whatever the
// server knows of the name will do, even that it has no such records.
func (a *attempt) dns(ctx context.Context) (string, error) {
	question, err := questionOf(a.health.Query)
	if err != nil {
		return "", err
	}
	network := "udp"
	if a.proto == balancer.TCP {
		network = "tcp"
	}
	answer, err := a.ask(ctx, network, question)
	if err == nil && answer.Truncated && network == "udp" && a.health.Expect != "" {
		answer, err = a.ask(ctx, "tcp", question)
	}
	if err != nil {
		return "", err
	}
	return a.judge(answer)
}

// questionOf is the question of a query that was validated.
func questionOf(query string) (dnsmessage.Question, error) {
	types := map[string]dnsmessage.Type{
		"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX,
		"NS": dnsmessage.TypeNS, "PTR": dnsmessage.TypePTR, "SOA": dnsmessage.TypeSOA, "SRV": dnsmessage.TypeSRV, "TXT": dnsmessage.TypeTXT,
	}
	q, err := balancer.ParseQuestion(query)
	if err != nil {
		return dnsmessage.Question{}, localf("query: %w", err)
	}
	name, err := dnsmessage.NewName(q.Name)
	if err != nil {
		return dnsmessage.Question{}, localf("query %q: %w", query, err)
	}
	return dnsmessage.Question{Name: name, Type: types[q.Type], Class: dnsmessage.ClassINET}, nil
}

// ask sends the question and reads until its answer comes; what belongs to no question of ours is passed over.
func (a *attempt) ask(ctx context.Context, network string, q dnsmessage.Question) (*dnsmessage.Message, error) {
	conn, err := a.connect(ctx, network)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	id := uint16(rand.Uint32())
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true}, Questions: []dnsmessage.Question{q}}
	packed, err := m.Pack()
	if err != nil {
		return nil, localf("writing the query: %w", err)
	}
	if network == "tcp" {
		abort(conn)
		packed = append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
	}
	a.notes.note("asking over %s for %s %s", network, q.Name.String(), strings.TrimPrefix(q.Type.String(), "Type"))
	if _, err := conn.Write(packed); err != nil {
		return nil, a.unasked(err, network)
	}
	for {
		text, err := readMessage(conn, network)
		if err != nil {
			return nil, a.unasked(err, network)
		}
		answer, err := unpack(text)
		if err != nil {
			return nil, fmt.Errorf("answered %s, which is not DNS", size(len(text)))
		}
		if answer.ID == id && answer.Response && (len(answer.Questions) == 0 || sameQuestion(answer.Questions[0], q)) {
			a.notes.note("answered %s", written(answer))
			return answer, nil
		}
	}
}

// unpack reads a message as far as its answers. What comes after them says nothing here, and may hold what the library does not
// take, such as a dot in the mailbox of an SOA.
func unpack(text []byte) (m *dnsmessage.Message, err error) {
	var p dnsmessage.Parser
	m = &dnsmessage.Message{}
	if m.Header, err = p.Start(text); err == nil {
		m.Questions, err = p.AllQuestions()
	}
	if err == nil {
		m.Answers, err = p.AllAnswers()
	}
	return m, err
}

func sameQuestion(a, b dnsmessage.Question) bool {
	return a.Type == b.Type && a.Class == b.Class && strings.EqualFold(a.Name.String(), b.Name.String())
}

func readMessage(conn net.Conn, network string) ([]byte, error) {
	buf := make([]byte, maxAnswer)
	if network == "udp" {
		n, err := conn.Read(buf)
		return buf[:n], err
	}
	if _, err := io.ReadFull(conn, buf[:2]); err != nil {
		return nil, err
	}
	buf = buf[:binary.BigEndian.Uint16(buf)]
	_, err := io.ReadFull(conn, buf)
	return buf, err
}

// unasked says why no answer came.
func (a *attempt) unasked(err error, network string) error {
	switch {
	case timedOut(err):
		return fmt.Errorf("no answer within %s", a.timeout())
	case network == "udp":
		return a.undelivered(err)
	}
	return a.silent(err, 0, "the answer")
}

var errPortUnreachable = errors.New("port unreachable: the host says that nothing listens there")

// judge compares an answer with what is expected.
func (a *attempt) judge(m *dnsmessage.Message) (string, error) {
	text := "answered " + written(m)
	want := a.health.Expect
	if want == "" {
		if m.RCode != dnsmessage.RCodeSuccess {
			return "", errors.New(text)
		}
		return text, nil
	}
	if strings.EqualFold(want, code(m)) {
		return text, nil
	}
	for i := range m.Answers {
		if sameData(data(&m.Answers[i]), want) {
			return text, nil
		}
	}
	return "", fmt.Errorf("%s, without the expected %s", text, excerpt([]byte(want)))
}

// sameData compares a record's data with what users wrote: names with and without the last dot, in any case.
func sameData(data, want string) bool {
	return strings.EqualFold(strings.TrimSuffix(data, "."), strings.TrimSuffix(want, "."))
}

// written is the answer in one line: its code, and the first few records.
func written(m *dnsmessage.Message) string {
	if m.RCode != dnsmessage.RCodeSuccess {
		return code(m)
	}
	if len(m.Answers) == 0 {
		return "with no such records"
	}
	const most = 4
	var words []string
	for i := range m.Answers[:min(most, len(m.Answers))] {
		words = append(words, firstLine(data(&m.Answers[i])))
	}
	if more := len(m.Answers) - most; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// code is the answer's code as people know it.
func code(m *dnsmessage.Message) string {
	switch m.RCode {
	case dnsmessage.RCodeSuccess:
		return "NOERROR"
	case dnsmessage.RCodeFormatError:
		return "FORMERR"
	case dnsmessage.RCodeServerFailure:
		return "SERVFAIL"
	case dnsmessage.RCodeNameError:
		return "NXDOMAIN"
	case dnsmessage.RCodeNotImplemented:
		return "NOTIMP"
	case dnsmessage.RCodeRefused:
		return "REFUSED"
	}
	return fmt.Sprintf("error code %d", m.RCode)
}

// data is a record's data as zone files have it.
func data(r *dnsmessage.Resource) string {
	switch b := r.Body.(type) {
	case *dnsmessage.AResource:
		return netip.AddrFrom4(b.A).String()
	case *dnsmessage.AAAAResource:
		return netip.AddrFrom16(b.AAAA).String()
	case *dnsmessage.CNAMEResource:
		return b.CNAME.String()
	case *dnsmessage.NSResource:
		return b.NS.String()
	case *dnsmessage.PTRResource:
		return b.PTR.String()
	case *dnsmessage.MXResource:
		return fmt.Sprintf("%d %s", b.Pref, b.MX)
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("%d %d %d %s", b.Priority, b.Weight, b.Port, b.Target)
	case *dnsmessage.SOAResource:
		return fmt.Sprintf("%s %s %d", b.NS, b.MBox, b.Serial)
	case *dnsmessage.TXTResource:
		return strings.Join(b.TXT, "")
	}
	return strings.TrimPrefix(r.Header.Type.String(), "Type")
}
