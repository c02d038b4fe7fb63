package resolve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// udpSize is the maximum size of an answer over UDP. Larger packets would often be fragmented.
const udpSize = 1232

// query asks the servers one after another for records of name, which must be absolute. It returns
// the first answer, which may have no records. The error explains why no server answered.
func (s *settings) query(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	last := errors.New("the lookup took too long")
	for range s.attempts {
		for _, server := range s.servers {
			if ctx.Err() != nil {
				return nil, last
			}
			reply, err := s.ask(ctx, server, name, kind)
			if err == nil {
				return reply, nil
			}
			last = err
		}
	}
	return nil, last
}

// ask asks one server. If the server does not support EDNS, it is asked again without it. A
// truncated answer is requested again over TCP.
func (s *settings) ask(ctx context.Context, server, name string, kind uint16) (*dns.Msg, error) {
	reply, err := s.exchange(ctx, "udp", server, name, kind, true)
	if err == nil && (reply.Rcode == dns.RcodeFormatError || reply.Rcode == dns.RcodeNotImplemented) {
		reply, err = s.exchange(ctx, "udp", server, name, kind, false)
	}
	if err == nil && reply.Truncated {
		reply, err = s.exchange(ctx, "tcp", server, name, kind, true)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("DNS server %s: %w", server, describe(err, s))
	case reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("DNS server %s answered %s", server, rcodeText(reply.Rcode))
	}
	return reply, nil
}

func rcodeText(code int) string {
	if text := dns.RcodeToString[code]; text != "" {
		return text
	}
	return fmt.Sprintf("error %d", code)
}

// describe omits the addresses from socket errors, because they differ each time.
func describe(err error, s *settings) error {
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s", s.timeout)
	case errors.As(err, &op):
		return op.Err
	}
	return err
}

// exchange sends one question and returns its answer. It ignores answers with another ID.
func (s *settings) exchange(ctx context.Context, network, server, name string, kind uint16, extended bool) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(name, kind)
	if extended {
		question.SetEdns0(udpSize, false)
	}
	client := dns.Client{Net: network, Timeout: s.timeout}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	reply, _, err := client.ExchangeContext(ctx, question, server)
	if err != nil {
		return nil, err
	}
	asked := question.Question[0]
	if !reply.Response || len(reply.Question) != 1 || reply.Question[0].Qtype != kind || !strings.EqualFold(reply.Question[0].Name, asked.Name) {
		return nil, errors.New("the answer does not match the question")
	}
	return reply, nil
}

// maxAliases is the maximum length of a CNAME chain.
const maxAliases = 16

// reply holds the records of one type for a name.
type reply struct {
	found []dns.RR
	// extra may contain the addresses of the hosts in found.
	extra []dns.RR
	// ttl is the shortest TTL of the records in found and of the aliases that lead to them.
	ttl time.Duration
}

// records returns the records of one type for name. It follows aliases within an answer and across
// answers. If there are no records, it returns an empty reply and no error.
func (s *settings) records(ctx context.Context, name string, kind uint16) (reply, error) {
	out := reply{ttl: math.MaxInt64}
	for range maxAliases {
		answer, err := s.query(ctx, name, kind)
		if err != nil {
			return reply{}, err
		}
		owner, aliases, err := finalName(answer.Answer, name)
		if err != nil {
			return reply{}, err
		}
		for _, rr := range answer.Answer {
			if rr.Header().Rrtype == kind && strings.EqualFold(rr.Header().Name, owner) {
				out.found = append(out.found, rr)
			}
		}
		for _, rr := range slices.Concat(aliases, out.found) {
			out.ttl = min(out.ttl, ttlOf(rr))
		}
		if len(out.found) > 0 {
			out.extra = answer.Extra
			return out, nil
		}
		if owner == name || answer.Rcode == dns.RcodeNameError {
			return reply{}, nil
		}
		name = owner // the server did not follow the alias
	}
	return reply{}, fmt.Errorf("the name has a chain of more than %d aliases", maxAliases)
}

func ttlOf(rr dns.RR) time.Duration { return time.Duration(rr.Header().Ttl) * time.Second }

// finalName follows the aliases from name within an answer. It returns the last name and the
// aliases.
func finalName(answer []dns.RR, name string) (string, []dns.RR, error) {
	next := map[string]*dns.CNAME{}
	for _, rr := range answer {
		if alias, is := rr.(*dns.CNAME); is {
			next[strings.ToLower(alias.Hdr.Name)] = alias
		}
	}
	var passed []dns.RR
	for {
		alias := next[strings.ToLower(name)]
		if alias == nil {
			return name, passed, nil
		}
		if passed = append(passed, alias); len(passed) > maxAliases {
			return "", nil, fmt.Errorf("the name has a chain of more than %d aliases", maxAliases)
		}
		name = alias.Target
	}
}

func addressOf(rr dns.RR) (a netip.Addr, ok bool) {
	switch r := rr.(type) {
	case *dns.A:
		a, ok = netip.AddrFromSlice(r.A)
	case *dns.AAAA:
		a, ok = netip.AddrFromSlice(r.AAAA)
	}
	return a.Unmap(), ok
}
