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

// dns sends the definition's query, over UDP unless the port is a TCP port. If the definition does
// not expect a particular answer, any NOERROR answer passes, even without records. If the
// definition expects one and the UDP answer is truncated, dns asks again over TCP.
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

// ask sends a question, and reads until its answer arrives. It ignores answers to other questions.
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
		return nil, a.queryError(err, network)
	}
	for {
		text, err := readMessage(conn, network)
		if err != nil {
			return nil, a.queryError(err, network)
		}
		answer, err := unpack(text)
		if err != nil {
			return nil, fmt.Errorf("answered %s, which is not a DNS message", size(len(text)))
		}
		if answer.ID == id && answer.Response && (len(answer.Questions) == 0 || sameQuestion(answer.Questions[0], q)) {
			a.notes.note("answered %s", summary(answer))
			return answer, nil
		}
	}
}

// unpack parses a message up to its answer section. It ignores the other sections, because the
// library rejects some valid records, such as an SOA with a dot in its mailbox.
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

func (a *attempt) queryError(err error, network string) error {
	switch {
	case timedOut(err):
		return fmt.Errorf("no answer within %s", a.timeout())
	case network == "udp":
		return a.deliveryError(err)
	}
	return a.readError(err, 0, "the answer")
}

var errPortUnreachable = errors.New("port unreachable: the host reports that nothing listens there")

// judge compares an answer with the expected answer in the definition, and returns the text of the
// result.
func (a *attempt) judge(m *dnsmessage.Message) (string, error) {
	text := "answered " + summary(m)
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

// sameData reports whether a record's data equals a wanted text. It ignores case and the final dot
// of a name.
func sameData(data, want string) bool {
	return strings.EqualFold(strings.TrimSuffix(data, "."), strings.TrimSuffix(want, "."))
}

// summary describes an answer in one line: its response code, or its first few records.
func summary(m *dnsmessage.Message) string {
	if m.RCode != dnsmessage.RCodeSuccess {
		return code(m)
	}
	if len(m.Answers) == 0 {
		return "with no records of this type"
	}
	const maxRecords = 4
	var words []string
	for i := range m.Answers[:min(maxRecords, len(m.Answers))] {
		words = append(words, firstLine(data(&m.Answers[i])))
	}
	if more := len(m.Answers) - maxRecords; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

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

// data returns a record's data in the format of zone files.
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
