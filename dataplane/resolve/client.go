package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"vipd/balancer"
)

// Client answers lookups. Its methods are safe for concurrent use.
type Client struct {
	o      Options
	config followed[*dns.ClientConfig]
	hosts  followed[hosts]
}

// Options configures a Client.
type Options struct {
	// Servers returns the DNS servers, each as ADDRESS or ADDRESS:PORT. If Servers is nil or
	// returns none, the client first reads HostsFile, and then uses the servers in ConfigFile.
	Servers func() []string
	// ConfigFile and HostsFile are the files of the system's resolver. They are read again when
	// they change. The defaults are the constants with these names.
	ConfigFile, HostsFile string
	// Timeout limits how long a lookup may take. The default is 30 s.
	Timeout time.Duration
}

// New returns a Client.
func New(o Options) *Client {
	if o.Servers == nil {
		o.Servers = func() []string { return nil }
	}
	o.ConfigFile, o.HostsFile = cmp.Or(o.ConfigFile, ConfigFile), cmp.Or(o.HostsFile, HostsFile)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	return &Client{o: o}
}

// Answer is the outcome of a lookup.
type Answer struct {
	balancer.Resolution
	// TTL is how long the answer is valid.
	TTL time.Duration
}

// defaultTimeout limits how long a lookup may take if servers or hosts never answer.
const defaultTimeout = 30 * time.Second

// hostsTTL is how long an answer from the hosts file is valid.
const hostsTTL = 5 * time.Second

// Answer looks up l. If a part of the lookup fails, the answer contains the members of last for
// that part.
func (c *Client) Answer(ctx context.Context, l balancer.Lookup, last []balancer.LookupRecord) Answer {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	var found answers
	var err error
	switch l.Kind {
	case balancer.ProgramLookup:
		found.members, err = runProgram(ctx, l.Args())
		found.ttl = math.MaxInt64
	case balancer.ServiceLookup:
		found, err = c.service(ctx, l, last)
	default:
		found, err = c.host(ctx, l, last)
	}
	if err == nil && len(found.members) == 0 {
		err = errors.New("the answer is empty")
	}
	a := Answer{Resolution: balancer.Resolution{Records: found.members}, TTL: found.ttl}
	if len(found.members) == 0 {
		a.Records = last
	}
	if err != nil {
		a.Failure = err.Error()
	}
	slices.SortFunc(a.Records, balancer.LookupRecord.Compare)
	a.Records = slices.Compact(a.Records)
	return a
}

// answers holds the members that a lookup found, and how long they are valid.
type answers struct {
	members []balancer.LookupRecord
	ttl     time.Duration
}

// host looks up a host's addresses. It uses the first possible name that has an address. If a
// server fails, it does not try the next name, which may belong to another host.
func (c *Client) host(ctx context.Context, l balancer.Lookup, last []balancer.LookupRecord) (answers, error) {
	if members := c.inHosts(l); len(members) > 0 {
		return answers{members, hostsTTL}, nil
	}
	s := c.settings()
	for _, name := range s.names(l.Name) {
		found, err := s.addresses(ctx, name, l, last)
		if len(found.members) > 0 || err != nil {
			return found, err
		}
	}
	return answers{}, fmt.Errorf("DNS has no %s for this name", addressIn(l))
}

func addressIn(l balancer.Lookup) string {
	switch {
	case !l.V6:
		return "IPv4 address"
	case !l.V4:
		return "IPv6 address"
	}
	return "IPv4 or IPv6 address"
}

// inHosts returns the addresses of a name in the hosts file, unless DNS servers are configured.
func (c *Client) inHosts(l balancer.Lookup) (members []balancer.LookupRecord) {
	name := strings.TrimSuffix(l.Name, ".")
	if len(c.o.Servers()) > 0 && name != "localhost" {
		return nil
	}
	for _, a := range c.hosts.read(c.o.HostsFile, parseHosts)[name] {
		if l.Wants(a) {
			members = append(members, balancer.LookupRecord{Addr: a, Host: l.Name})
		}
	}
	return members
}

// addresses looks up the addresses of name in the families of l concurrently. If the lookup for a
// family fails, addresses uses that family's members of last, and returns an error.
func (s *settings) addresses(ctx context.Context, name string, l balancer.Lookup, last []balancer.LookupRecord) (answers, error) {
	if len(last) == 0 && l.V4 && l.V6 {
		// An unanswered question about one family must not delay the other family's first
		// addresses.
		first := *s
		first.attempts = 1
		s = &first
	}
	kinds := []uint16{dns.TypeA, dns.TypeAAAA}
	replies, errs := make([]reply, len(kinds)), make([]error, len(kinds))
	var asking sync.WaitGroup
	for i, wanted := range []bool{l.V4, l.V6} {
		if wanted {
			asking.Go(func() { replies[i], errs[i] = s.records(ctx, name, kinds[i]) })
		}
	}
	asking.Wait()
	out := answers{ttl: math.MaxInt64}
	var failed error
	for i, kind := range kinds {
		if errs[i] != nil {
			failed = errs[i]
			for _, m := range last {
				if m.Addr.Is4() == (kind == dns.TypeA) {
					out.members = append(out.members, m)
				}
			}
		}
		for _, rr := range replies[i].found {
			if a, ok := addressOf(rr); ok {
				out.members, out.ttl = append(out.members, balancer.LookupRecord{Addr: a, Host: l.Name}), min(out.ttl, replies[i].ttl)
			}
		}
	}
	return out, failed
}

// service looks up SRV records, and then the addresses of their hosts. All records except those
// with the lowest priority number become backups.
func (c *Client) service(ctx context.Context, l balancer.Lookup, last []balancer.LookupRecord) (answers, error) {
	s := c.settings()
	for _, name := range s.names(l.Name) {
		reply, err := s.records(ctx, name, dns.TypeSRV)
		if err != nil {
			return answers{}, err
		}
		if len(reply.found) > 0 {
			return s.targets(ctx, l, reply, last)
		}
	}
	return answers{}, errors.New("DNS has no SRV records for this name")
}

// maxHosts limits the concurrent lookups of hosts for one answer. Each lookup has up to two
// questions.
const maxHosts = 4

// targets finds the addresses of the hosts in SRV records, either in the answer itself or through
// lookups.
func (s *settings) targets(ctx context.Context, l balancer.Lookup, services reply, last []balancer.LookupRecord) (answers, error) {
	out, known := answers{ttl: services.ttl}, glue(services.extra, l)
	var mu sync.Mutex // guards failures and out
	var failures []string
	var asking sync.WaitGroup
	free := make(chan struct{}, maxHosts)
	lowest := slices.MinFunc(services.found, func(a, b dns.RR) int { return cmp.Compare(a.(*dns.SRV).Priority, b.(*dns.SRV).Priority) }).(*dns.SRV).Priority
	for host, at := range byTarget(services.found) {
		asking.Go(func() {
			found, complete := known[host]
			var err error
			if !complete {
				free <- struct{}{}
				found, err = s.target(ctx, host, l, last)
				<-free
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, err.Error())
			}
			out.ttl = min(out.ttl, found.ttl)
			for _, r := range at {
				for _, m := range found.members {
					out.members = append(out.members, balancer.LookupRecord{
						Addr: m.Addr, Port: r.Port, Weight: max(1, int(r.Weight)), Backup: r.Priority > lowest, Host: strings.TrimSuffix(host, "."),
					})
				}
			}
		})
	}
	asking.Wait()
	if len(failures) > 0 { // the first text in sorted order, so equal failures have equal texts
		return out, errors.New(slices.Min(failures))
	}
	return out, nil
}

// glue returns the addresses of SRV targets, by host, from an answer's additional section. It omits
// a host without addresses in a requested family, because the server may have omitted them.
func glue(extra []dns.RR, l balancer.Lookup) map[string]answers {
	all := map[string]answers{}
	for _, rr := range extra {
		if a, ok := addressOf(rr); ok && l.Wants(a) {
			host := strings.ToLower(rr.Header().Name)
			found, known := all[host]
			if !known {
				found.ttl = math.MaxInt64
			}
			all[host] = answers{append(found.members, balancer.LookupRecord{Addr: a}), min(found.ttl, ttlOf(rr))}
		}
	}
	maps.DeleteFunc(all, func(_ string, found answers) bool {
		is4 := func(m balancer.LookupRecord) bool { return m.Addr.Is4() }
		is6 := func(m balancer.LookupRecord) bool { return m.Addr.Is6() }
		return l.V4 && !slices.ContainsFunc(found.members, is4) || l.V6 && !slices.ContainsFunc(found.members, is6)
	})
	return all
}

// byTarget returns the SRV records of each host. The host "." means that there is no service.
func byTarget(records []dns.RR) map[string][]*dns.SRV {
	all := map[string][]*dns.SRV{}
	for _, rr := range records {
		r := rr.(*dns.SRV)
		if host := strings.ToLower(r.Target); host != "." {
			all[host] = append(all[host], r)
		}
	}
	return all
}

// target looks up one host of SRV records. If the host has no addresses, target uses the members of
// last or omits the host, and returns an error.
func (s *settings) target(ctx context.Context, host string, l balancer.Lookup, last []balancer.LookupRecord) (answers, error) {
	own := slices.DeleteFunc(slices.Clone(last), func(m balancer.LookupRecord) bool { return m.Host != strings.TrimSuffix(host, ".") })
	found, err := s.addresses(ctx, host, l, own)
	if err == nil && len(found.members) == 0 {
		found.members = own
		err = fmt.Errorf("%s has no %s", strings.TrimSuffix(host, "."), addressIn(l))
	}
	return found, err
}

// parseMember parses a line of a program's output: ADDRESS[:PORT] [weight=N].
func parseMember(line string) (balancer.LookupRecord, error) {
	m := balancer.LookupRecord{Weight: 1}
	fields := strings.Fields(line)
	if at, err := netip.ParseAddrPort(fields[0]); err == nil && at.Port() != 0 {
		m.Addr, m.Port = at.Addr().Unmap(), at.Port()
	} else if a, err := netip.ParseAddr(fields[0]); err == nil {
		m.Addr = a.Unmap()
	} else {
		return m, fmt.Errorf("%q must have the form ADDRESS[:PORT], such as 192.168.1.11 or 192.168.1.11:8080", fields[0])
	}
	if m.Addr.Zone() != "" {
		return m, fmt.Errorf("%q has a zone: endpoint addresses must not have zones", fields[0])
	}
	if why := balancer.NotUnicast(m.Addr); why != "" {
		return m, fmt.Errorf("%s is %s: an endpoint needs the address of a single host", m.Addr, why)
	}
	for _, field := range fields[1:] {
		if n, err := fmt.Sscanf(field+"\n", "weight=%d\n", &m.Weight); n != 1 || err != nil || m.Weight < 0 || m.Weight > balancer.MaxWeight {
			return m, fmt.Errorf("%q must have the form weight=N, with N from 0 to %d", field, balancer.MaxWeight)
		}
	}
	return m, nil
}
