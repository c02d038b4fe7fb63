package resolve

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// These are the configuration files of the system's resolver.
const (
	ConfigFile = "/etc/resolv.conf"
	HostsFile  = "/etc/hosts"
)

// maxTimeout limits how long the client waits for a server, because resolv.conf permits any number
// of seconds.
const maxTimeout = 10 * time.Second

// settings holds the servers and the query parameters.
type settings struct {
	servers  []string // ADDRESS:PORT
	names    func(name string) []string
	timeout  time.Duration
	attempts int
}

func (c *Client) settings() settings {
	conf := c.config.read(c.o.ConfigFile, parseConfig)
	servers := c.o.Servers()
	if len(servers) == 0 {
		servers = conf.Servers
	}
	if len(servers) == 0 {
		servers = []string{"127.0.0.1"} // as the C library does
	}
	s := settings{
		names: conf.NameList, timeout: min(time.Duration(conf.Timeout)*time.Second, maxTimeout), attempts: conf.Attempts,
	}
	for _, server := range servers {
		if _, err := netip.ParseAddrPort(server); err != nil {
			server = net.JoinHostPort(server, "53")
		}
		s.servers = append(s.servers, server)
	}
	return s
}

// parseConfig parses a resolv.conf. It returns the defaults if the file can't be read.
func parseConfig(file *os.File) *dns.ClientConfig {
	if file != nil {
		if conf, err := dns.ClientConfigFromReader(file); err == nil {
			conf.Search = slices.DeleteFunc(conf.Search, func(domain string) bool { return strings.Trim(domain, ".") == "" })
			return conf
		}
	}
	conf, _ := dns.ClientConfigFromReader(strings.NewReader("")) // an empty configuration is always valid
	return conf
}

// hosts maps names to their addresses in a hosts file.
type hosts map[string][]netip.Addr

// parseHosts parses a hosts file. The name localhost always has its loopback addresses.
func parseHosts(file *os.File) hosts {
	all := hosts{}
	if file != nil {
		for lines := bufio.NewScanner(file); lines.Scan(); {
			text, _, _ := strings.Cut(lines.Text(), "#")
			fields := strings.Fields(text)
			if len(fields) == 0 {
				continue
			}
			addr, err := netip.ParseAddr(fields[0])
			if err != nil || addr.Zone() != "" {
				continue
			}
			for _, name := range fields[1:] {
				name = strings.ToLower(name)
				all[name] = append(all[name], addr.Unmap())
			}
		}
	}
	if len(all["localhost"]) == 0 {
		all["localhost"] = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	return all
}

// followed is the parsed content of a file. The file is read again after it changes.
type followed[T any] struct {
	mu      sync.Mutex
	content T
	known   bool
	info    os.FileInfo
}

// read returns the parsed content of the file at path. If the file can't be opened, parse gets nil.
func (f *followed[T]) read(path string, parse func(*os.File) T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, _ := os.Stat(path) // nil if the file does not exist
	if f.known && sameFile(f.info, info) {
		return f.content
	}
	file, err := os.Open(path)
	if err != nil {
		file = nil
	} else {
		defer func() { _ = file.Close() }() // nothing was written
	}
	f.content = parse(file)
	f.known = true
	f.info = info
	return f.content
}

// sameFile reports whether a file did not change between two calls of os.Stat. Nil means that the
// file did not exist.
func sameFile(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
