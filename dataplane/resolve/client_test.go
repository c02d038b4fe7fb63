package resolve_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/resolve"
	"vipd/test/dnskit"
	"vipd/test/wait"
)

// client returns a Client that uses the DNS servers. config holds options and search domains in
// resolv.conf's format.
func client(t *testing.T, config string, servers ...string) *resolve.Client {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("options timeout:1 attempts:1\n"+config), 0o600); err != nil {
		t.Fatal(err)
	}
	return resolve.New(resolve.Options{Servers: func() []string { return servers }, ConfigFile: file, HostsFile: "/nonexistent"})
}

func hostOf(name string) balancer.Lookup {
	return balancer.Lookup{Kind: balancer.HostLookup, Name: name, V4: true, V6: true}
}

// text formats an answer: its members, its TTL in seconds and its failure.
func text(a resolve.Answer) string {
	var words []string
	for _, m := range a.Records {
		word := m.Addr.String()
		if m.Port != 0 {
			word = netip.AddrPortFrom(m.Addr, m.Port).String()
		}
		if m.Weight != 0 {
			word += fmt.Sprintf("*%d", m.Weight)
		}
		if m.Backup {
			word += "(backup)"
		}
		words = append(words, word)
	}
	if a.Failure != "" {
		return strings.Join(append(words, "! "+a.Failure), " ")
	}
	return strings.Join(append(words, fmt.Sprintf("for %s", a.TTL)), " ")
}

func members(addresses ...string) (all []balancer.LookupRecord) {
	for _, a := range addresses {
		all = append(all, balancer.LookupRecord{Addr: netip.MustParseAddr(a), Host: "db.example.org"})
	}
	return all
}

var zone = []string{
	"db.example.org. 60 IN A 192.0.2.1", "db.example.org. 30 IN A 192.0.2.2", "db.example.org. 300 IN AAAA 2001:db8::1",
	"only4.example.org. 60 IN A 192.0.2.1", "only6.example.org. 60 IN AAAA 2001:db8::1",
	"alias.example.org. 7 IN CNAME alias2.example.org.", "alias2.example.org. 60 IN CNAME only4.example.org.",
	"loop.example.org. 60 IN CNAME loop.example.org.",
	"nothing.example.org. 60 IN TXT nothing",
	"db.search.example.org. 60 IN A 192.0.2.9",
	"_pg._tcp.example.org. 20 IN SRV 10 0 5432 pg1.example.org.", "_pg._tcp.example.org. 20 IN SRV 10 5 5433 pg2.example.org.",
	"_pg._tcp.example.org. 20 IN SRV 20 1 5432 pg3.example.org.",
	"pg1.example.org. 60 IN A 192.0.2.11", "pg1.example.org. 60 IN AAAA 2001:db8::11",
	"pg2.example.org. 60 IN A 192.0.2.12", "pg3.example.org. 10 IN A 192.0.2.13",
	"_dead._tcp.example.org. 20 IN SRV 1 1 80 dead.example.org.", "_dead._tcp.example.org. 20 IN SRV 1 1 80 pg2.example.org.",
	"_none._tcp.example.org. 20 IN SRV 0 0 0 .",
}

// TestAnswers sends queries to a faulty server. Each answer must be correct, or must contain the
// last correct answer's members and the reason.
func TestAnswers(t *testing.T) {
	srv := balancer.Lookup{Kind: balancer.ServiceLookup, Name: "_pg._tcp.example.org", V4: true, V6: true}
	last := members("192.0.2.7", "2001:db8::7")
	for name, c := range map[string]struct {
		lookup balancer.Lookup
		broken string // the question with a wrong answer; "" means all questions
		fault  dnskit.Fault
		lazy   bool
		config string
		last   []balancer.LookupRecord
		want   string
	}{
		"both families":      {want: "192.0.2.1 192.0.2.2 2001:db8::1 for 30s"},
		"one family":         {lookup: balancer.Lookup{Kind: balancer.HostLookup, Name: "db.example.org", V6: true}, want: "2001:db8::1 for 5m0s"},
		"no IPv6 records":    {lookup: hostOf("only4.example.org"), want: "192.0.2.1 for 1m0s"},
		"aliases":            {lookup: hostOf("alias.example.org"), want: "192.0.2.1 for 7s"},
		"aliases, lazy":      {lookup: hostOf("alias.example.org"), lazy: true, want: "192.0.2.1 for 7s"},
		"alias loop":         {lookup: hostOf("loop.example.org"), last: last, want: "192.0.2.7 2001:db8::7 ! the name has a chain of more than 16 aliases"},
		"no such name":       {lookup: hostOf("missing.example.org"), last: last, want: "192.0.2.7 2001:db8::7 ! DNS has no IPv4 or IPv6 address for this name"},
		"no addresses":       {lookup: hostOf("nothing.example.org"), want: "! DNS has no IPv4 or IPv6 address for this name"},
		"no IPv6 addresses":  {lookup: balancer.Lookup{Kind: balancer.HostLookup, Name: "only4.example.org", V6: true}, want: "! DNS has no IPv6 address for this name"},
		"no IPv4 addresses":  {lookup: balancer.Lookup{Kind: balancer.HostLookup, Name: "only6.example.org", V4: true}, want: "! DNS has no IPv4 address for this name"},
		"NXDOMAIN":           {fault: dnskit.Missing, last: last, want: "192.0.2.7 2001:db8::7 ! DNS has no IPv4 or IPv6 address for this name"},
		"empty":              {fault: dnskit.Empty, last: last, want: "192.0.2.7 2001:db8::7 ! DNS has no IPv4 or IPv6 address for this name"},
		"SERVFAIL":           {fault: dnskit.Failure, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER answered SERVFAIL"},
		"REFUSED":            {fault: dnskit.Refusal, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER answered REFUSED"},
		"silence":            {fault: dnskit.Silence, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER: no answer within 1s"},
		"wrong ID":           {fault: dnskit.WrongID, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER: no answer within 1s"},
		"wrong ID first":     {fault: dnskit.WrongFirst, want: "192.0.2.1 192.0.2.2 2001:db8::1 for 30s"},
		"other question":     {fault: dnskit.OtherQuestion, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER: the answer does not match the question"},
		"garbage":            {fault: dnskit.Garbage, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER: dns: short read"},
		"truncation":         {fault: dnskit.Truncation, want: "192.0.2.1 192.0.2.2 2001:db8::1 for 30s"},
		"no TCP":             {fault: dnskit.TCPRefused, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER: EOF"},
		"no EDNS":            {fault: dnskit.NoEDNS, want: "192.0.2.1 192.0.2.2 2001:db8::1 for 30s"},
		"IPv6 fails":         {broken: "AAAA db.example.org.", fault: dnskit.Failure, last: last, want: "192.0.2.1 192.0.2.2 2001:db8::7 ! DNS server SERVER answered SERVFAIL"},
		"IPv6 is missing":    {broken: "AAAA db.example.org.", fault: dnskit.Missing, last: last, want: "192.0.2.1 192.0.2.2 for 30s"},
		"search":             {lookup: hostOf("db"), config: "search example.com search.example.org example.org", want: "192.0.2.9 for 1m0s"},
		"search, absolute":   {lookup: hostOf("db."), config: "search example.org", want: "! DNS has no IPv4 or IPv6 address for this name"},
		"search fails":       {lookup: hostOf("db"), config: "search search.example.org example.org", broken: "db.search.example.org.", fault: dnskit.Failure, want: "! DNS server SERVER answered SERVFAIL"},
		"enough dots":        {lookup: hostOf("db.example.org"), config: "search search.example.org", want: "192.0.2.1 192.0.2.2 2001:db8::1 for 30s"},
		"ndots":              {lookup: hostOf("db.search"), config: "search example.org\noptions ndots:2", want: "192.0.2.9 for 1m0s"},
		"SRV":                {lookup: srv, want: "192.0.2.11:5432*1 192.0.2.12:5433*5 [2001:db8::11]:5432*1 192.0.2.13:5432*1(backup) for 10s"},
		"SRV, lazy":          {lookup: srv, lazy: true, want: "192.0.2.11:5432*1 192.0.2.12:5433*5 [2001:db8::11]:5432*1 192.0.2.13:5432*1(backup) for 10s"},
		"SRV half glue":      {lookup: srv, fault: dnskit.HalfGlue, want: "192.0.2.11:5432*1 192.0.2.12:5433*5 [2001:db8::11]:5432*1 192.0.2.13:5432*1(backup) for 10s"},
		"SRV truncation":     {lookup: srv, fault: dnskit.Truncation, want: "192.0.2.11:5432*1 192.0.2.12:5433*5 [2001:db8::11]:5432*1 192.0.2.13:5432*1(backup) for 10s"},
		"SRV NXDOMAIN":       {lookup: srv, fault: dnskit.Missing, last: last, want: "192.0.2.7 2001:db8::7 ! DNS has no SRV records for this name"},
		"SRV SERVFAIL":       {lookup: srv, fault: dnskit.Failure, last: last, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER answered SERVFAIL"},
		"SRV without a host": {lookup: balancer.Lookup{Kind: balancer.ServiceLookup, Name: "_dead._tcp.example.org", V4: true}, want: "192.0.2.12:80*1 ! dead.example.org has no IPv4 address"},
		"SRV, a host vanishes": {lookup: srv, broken: "pg1.example.org.", fault: dnskit.Missing,
			last: []balancer.LookupRecord{{Addr: netip.MustParseAddr("192.0.2.77"), Port: 1, Weight: 9, Host: "pg1.example.org"}, {Addr: netip.MustParseAddr("192.0.2.78"), Host: "gone.example.org"}},
			want: "192.0.2.12:5433*5 192.0.2.77:5432*1 192.0.2.13:5432*1(backup) ! pg1.example.org has no IPv4 or IPv6 address"},
		"SRV of no service": {lookup: balancer.Lookup{Kind: balancer.ServiceLookup, Name: "_none._tcp.example.org", V4: true}, last: last, want: "192.0.2.7 2001:db8::7 ! the answer is empty"},
		"SRV, a host fails": {lookup: srv, broken: "pg1.example.org.", fault: dnskit.Failure,
			last: []balancer.LookupRecord{{Addr: netip.MustParseAddr("192.0.2.77"), Port: 1, Weight: 9, Host: "pg1.example.org"}, {Addr: netip.MustParseAddr("192.0.2.78"), Host: "gone.example.org"}},
			want: "192.0.2.12:5433*5 192.0.2.77:5432*1 192.0.2.13:5432*1(backup) ! DNS server SERVER answered SERVFAIL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dns := dnskit.New(t, "127.0.0.1")
			dns.Set(t, zone...)
			if c.broken == "" {
				c.broken = "*"
			}
			dns.Break(c.broken, c.fault)
			if c.lazy {
				dns.Lazy()
			}
			if c.lookup.Kind == "" {
				c.lookup = hostOf("db.example.org")
			}
			before := slices.Clone(c.last)
			got := text(client(t, c.config, dns.Address).Answer(t.Context(), c.lookup, c.last))
			if got = strings.ReplaceAll(got, dns.Address, "SERVER"); got != c.want {
				t.Errorf("Answer(%s) = %s\nwant %s", c.lookup, got, c.want)
			}
			if !slices.Equal(c.last, before) {
				t.Errorf("members of the last answer = %v, want them unchanged", c.last)
			}
		})
	}
}

// TestSilence makes the server ignore the questions about one or both address families. The client
// must ask about both families at the same time. One family's addresses must not wait for a
// repeated question about the other.
func TestSilence(t *testing.T) {
	for name, c := range map[string]struct {
		broken string
		last   []balancer.LookupRecord
		limit  time.Duration
		want   string
	}{
		"IPv6, first answer": {broken: "AAAA db.example.org.", limit: 2 * time.Second, want: "192.0.2.1 192.0.2.2 ! DNS server SERVER: no answer within 1s"},
		"both families":      {broken: "*", last: members("192.0.2.7", "2001:db8::7"), limit: 5 * time.Second, want: "192.0.2.7 2001:db8::7 ! DNS server SERVER: no answer within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dns := dnskit.New(t, "127.0.0.1")
			dns.Set(t, zone...)
			dns.Break(c.broken, dnskit.Silence)
			start := time.Now()
			got := text(client(t, "options attempts:3", dns.Address).Answer(t.Context(), hostOf("db.example.org"), c.last))
			if got = strings.ReplaceAll(got, dns.Address, "SERVER"); got != c.want {
				t.Errorf("Answer = %s, want %s", got, c.want)
			}
			if lasted := time.Since(start); lasted > c.limit {
				t.Errorf("lookup took %s, want at most %s", lasted, c.limit)
			}
		})
	}
}

// TestTimeout looks up SRV records whose hosts mostly can't be resolved, because the server does
// not answer. The lookup must finish in time. Its answer must contain the resolved host's
// addresses, and the previous members of all other hosts.
func TestTimeout(t *testing.T) {
	t.Parallel()
	dns := dnskit.New(t, "127.0.0.1")
	records := []string{"_many._tcp.example.org. 20 IN SRV 1 1 80 good.example.org.", "good.example.org. 60 IN A 192.0.2.1"}
	for i := range 40 {
		host := fmt.Sprintf("dead%d.example.org.", i)
		records = append(records, "_many._tcp.example.org. 20 IN SRV 1 1 80 "+host)
		dns.Break(host, dnskit.Silence)
	}
	dns.Set(t, records...)
	config := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(config, []byte("options timeout:1 attempts:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := resolve.New(resolve.Options{Servers: func() []string { return []string{dns.Address} }, ConfigFile: config, Timeout: 2 * time.Second})
	last := []balancer.LookupRecord{{Addr: netip.MustParseAddr("192.0.2.7"), Host: "dead7.example.org"}, {Addr: netip.MustParseAddr("192.0.2.39"), Host: "dead39.example.org"}}
	start := time.Now()
	got := text(c.Answer(t.Context(), balancer.Lookup{Kind: balancer.ServiceLookup, Name: "_many._tcp.example.org", V4: true}, last))
	if want := "192.0.2.1:80*1 192.0.2.7:80*1 192.0.2.39:80*1 ! DNS server " + dns.Address + ": no answer within 1s"; got != want {
		t.Errorf("Answer = %s, want %s", got, want)
	}
	if lasted := time.Since(start); lasted > 4*time.Second {
		t.Errorf("lookup took %s, want at most 4s", lasted)
	}
}

// TestNextServer makes the first of two servers fail in several ways. The second server must then
// be used.
func TestNextServer(t *testing.T) {
	for _, fault := range []dnskit.Fault{dnskit.Failure, dnskit.Silence, dnskit.Refusal} {
		broken, good := dnskit.New(t, "127.0.0.1"), dnskit.New(t, "127.0.0.1")
		broken.Break("*", fault)
		good.Set(t, zone...)
		if got, want := text(client(t, "", broken.Address, good.Address).Answer(t.Context(), hostOf("only4.example.org"), nil)), "192.0.2.1 for 1m0s"; got != want {
			t.Errorf("first server with fault %s: Answer = %s, want %s", fault, got, want)
		}
	}
}

// TestManyRecords looks up names with more records than a UDP answer can contain. All records must
// arrive over TCP.
func TestManyRecords(t *testing.T) {
	const names, each = 4, 2500
	dns := dnskit.New(t, "127.0.0.1")
	var lines []string
	for i := range names * each {
		lines = append(lines, fmt.Sprintf("many%d.example.org. 60 IN A 10.%d.%d.%d", i/each, 1+i/each, i%each/250, i%250))
	}
	dns.Set(t, lines...)
	c, total := client(t, "", dns.Address), 0
	for i := range names {
		a := c.Answer(t.Context(), hostOf(fmt.Sprintf("many%d.example.org", i)), nil)
		if a.Failure != "" || len(a.Records) != each {
			t.Errorf("name %d: members = %d, failure = %q; want %d and no failure", i, len(a.Records), a.Failure, each)
		}
		total += len(a.Records)
	}
	if over := dns.OverTCP(); total != names*each || over != names {
		t.Errorf("records = %d, questions over TCP = %d; want %d, %d", total, over, names*each, names)
	}
}

// TestSystemFiles replaces resolv.conf and the hosts file. The next lookups must use the new
// content.
func TestSystemFiles(t *testing.T) {
	one := dnskit.New(t, "127.0.0.1")
	one.Set(t, "db.example.org. 60 IN A 192.0.2.1", "db.example.com. 60 IN A 192.0.2.2")
	dir := t.TempDir()
	conf, hosts := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "hosts")
	save := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	servers := []string{one.Address}
	c := resolve.New(resolve.Options{Servers: func() []string { return servers }, ConfigFile: conf, HostsFile: hosts})
	asks := func(name, want string) {
		t.Helper()
		if got := text(c.Answer(t.Context(), hostOf(name), nil)); got != want {
			t.Errorf("Answer(%s) = %s, want %s", name, got, want)
		}
	}
	save(conf, "search example.org\n")
	asks("db", "192.0.2.1 for 1m0s")
	save(conf, "search example.com\n")
	asks("db", "192.0.2.2 for 1m0s")

	servers = nil
	save(conf, "nameserver 192.0.2.53\noptions timeout:1 attempts:1\n")
	save(hosts, "192.0.2.5 db db.local # a comment\nfe80::1%lo db\n2001:db8::5 DB\n")
	asks("db", "192.0.2.5 2001:db8::5 for 5s")
	asks("localhost", "127.0.0.1 ::1 for 5s")
	save(hosts, "192.0.2.6 db\n")
	asks("db", "192.0.2.6 for 5s")
}

// TestPrograms runs programs that print endpoints. If a program's output can't be parsed, the
// answer must contain the previous members.
func TestPrograms(t *testing.T) {
	last := members("192.0.2.7")
	for script, want := range map[string]string{
		`printf '192.0.2.2:81 weight=3\n\n# no endpoint\n192.0.2.1\n[2001:db8::1]:80\n'`: "192.0.2.1*1 192.0.2.2:81*3 [2001:db8::1]:80*1",
		`echo 192.0.2.1 weight=0`:                        "192.0.2.1",
		`echo 192.0.2.1; echo db1`:                       `192.0.2.7 ! line 2 of its output: "db1" must have the form ADDRESS[:PORT], such as 192.168.1.11 or 192.168.1.11:8080`,
		`echo fe80::1%eth0`:                              `192.0.2.7 ! line 1 of its output: "fe80::1%eth0" has a zone: endpoint addresses must not have zones`,
		`echo '[fe80::1%eth0]:80'`:                       `192.0.2.7 ! line 1 of its output: "[fe80::1%eth0]:80" has a zone: endpoint addresses must not have zones`,
		`echo 0.0.0.0:80`:                                "192.0.2.7 ! line 1 of its output: 0.0.0.0 is the unspecified address: an endpoint needs the address of a single host",
		`echo 224.0.0.1`:                                 "192.0.2.7 ! line 1 of its output: 224.0.0.1 is a multicast address: an endpoint needs the address of a single host",
		`echo 255.255.255.255:8080`:                      "192.0.2.7 ! line 1 of its output: 255.255.255.255 is the broadcast address: an endpoint needs the address of a single host",
		`echo 192.0.2.1 weight=x`:                        `192.0.2.7 ! line 1 of its output: "weight=x" must have the form weight=N, with N from 0 to 65535`,
		`echo 192.0.2.1 weight=1x`:                       `192.0.2.7 ! line 1 of its output: "weight=1x" must have the form weight=N, with N from 0 to 65535`,
		`echo 192.0.2.1 weight=70000`:                    `192.0.2.7 ! line 1 of its output: "weight=70000" must have the form weight=N, with N from 0 to 65535`,
		`true`:                                           "192.0.2.7 ! the answer is empty",
		`echo 192.0.2.1; echo 'no database' >&2; exit 3`: `192.0.2.7 ! the program exited with 3: "no database"`,
	} {
		l := balancer.Lookup{Kind: balancer.ProgramLookup, Name: strings.Join([]string{"/bin/sh", "-c", script}, "\x00")}
		got, _, _ := strings.Cut(text(client(t, "").Answer(t.Context(), l, last)), " for ")
		if got != want {
			t.Errorf("%s:\nanswer = %s\nwant     %s", script, got, want)
		}
	}
	l := balancer.Lookup{Kind: balancer.ProgramLookup, Name: strings.Join([]string{"/bin/sh", "-c", `i=0; while [ $i -lt 10000 ]; do echo 10.1.$((i/250)).$((i%250)):8080 weight=5; i=$((i+1)); done`}, "\x00")}
	if a := client(t, "").Answer(t.Context(), l, nil); len(a.Records) != 10000 || a.Failure != "" {
		t.Errorf("program that prints 10000 endpoints: got %d, failure = %q; want all and no failure", len(a.Records), a.Failure)
	}
}

// TestNothingLeaks repeats lookups with all kinds of answers. Afterwards, no additional sockets or
// goroutines may exist.
func TestNothingLeaks(t *testing.T) {
	dns := dnskit.New(t, "127.0.0.1")
	dns.Set(t, zone...)
	dns.Break("truncated.example.org.", dnskit.Truncation)
	dns.Break("failing.example.org.", dnskit.Failure)
	dns.Break("refusing.example.org.", dnskit.TCPRefused)
	c := client(t, "", dns.Address)
	names := []string{"db.example.org", "alias.example.org", "truncated.example.org", "failing.example.org", "refusing.example.org", "missing.example.org"}
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("needs /proc")
		}
		return len(files)
	}
	before := open()
	for i := range wait.Soak(2000, 1_000_000) {
		l := hostOf(names[i%len(names)])
		if i%10 == 0 {
			l = balancer.Lookup{Kind: balancer.ServiceLookup, Name: "_pg._tcp.example.org", V4: true, V6: true}
		}
		c.Answer(t.Context(), l, nil)
	}
	wait.For(t, time.Minute, fmt.Sprintf("no more than %d open files", before), func() bool { return open() <= before })
}
