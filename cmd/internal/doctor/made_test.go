package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
	"vipd/dataplane/userspace"
)

// fakeHost is a fake Host. The field files maps each path to the file's content, and the field
// prints maps each command line to its output.
type fakeHost struct {
	Host
	files, prints map[string]string
	programs      []string
	owned         []balancer.Key
	refused       []folder.Refusal
	put           map[netip.Addr]string
	lost          error // error from reading the ledgers
	unfenced      error
	members       [][]string // each etcd member's URLs
	words         []string   // arguments of the etcd process
	owner         *api.OwnerStatus
	timeout       time.Duration // IPVS's timeout for idle TCP connections
}

// newFakeHost returns a host on which iptables and userspace mode work, and doctor finds no
// problems.
func newFakeHost() *fakeHost {
	m := &fakeHost{
		files: map[string]string{
			"/proc/sys/net/ipv4/ip_forward": "1\n", "/proc/sys/net/ipv6/conf/all/forwarding": "1\n",
			"/proc/sys/net/netfilter/nf_conntrack_max": "1000\n", "/proc/sys/net/netfilter/nf_conntrack_count": "10\n",
			"/proc/sys/net/netfilter/nf_conntrack_acct": "1\n", "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal": "1\n",
			"/proc/sys/net/ipv4/conf/all/arp_ignore": "1\n", "/proc/sys/net/ipv4/conf/all/arp_announce": "2\n",
			"/proc/sys/net/ipv4/conf/all/rp_filter": "0\n", "/proc/sys/net/ipv4/conf/eth0/rp_filter": "0\n",
			"/proc/thread-self/net/ip_tables_matches": "set\nconntrack\nconnmark\nstatistic\nbpf\n",
			"/proc/sys/kernel/osrelease":              "6.1.0\n",
		},
		prints: map[string]string{
			"iptables --version": "iptables v1.8.9 (nf_tables)\n", "ip6tables --version": "ip6tables v1.8.9 (nf_tables)\n",
			"iptables-restore": "", "ip6tables-restore": "", "iptables-nft-save": "", "ip6tables-nft-save": "",
			"iptables-legacy-save": "", "ip6tables-legacy-save": "", "nft -j list chains": `{"nftables": []}`,
		},
	}
	m.Host = Host{
		System: m.system(), Config: config.Default(), ConfigFile: "vipd.toml",
		Modes:  []modes.Mode{trialOf(config.IPTablesMode, true, nil), trialOf(config.UserspaceMode, false, nil)},
		Status: &api.Status{Version: "v1", Node: "gw1", Mode: api.Mode{InUse: "iptables", Wanted: "auto", Detail: "nft"}},
		Ledgers: Ledgers{
			Recorded: func() ([]balancer.Key, error) { return m.owned, m.lost },
			Held:     func() (map[netip.Addr]string, error) { return m.put, m.lost },
		},
		Failover: Failover{
			Fence:   func() error { return m.unfenced },
			Members: func(context.Context) ([][]string, error) { return m.members, nil },
			Owner: func() (*api.OwnerStatus, error) {
				if m.owner == nil {
					return nil, errors.New("connection refused")
				}
				return m.owner, nil
			},
		},
	}
	m.frontend("10.96.0.10:80/tcp", false)
	m.Status.Addresses = []api.Address{{Address: "10.96.0.10", Held: "vipd0"}}
	return m
}

// system returns a System that returns the files and outputs in m.
func (m *fakeHost) system() System {
	return System{
		Root: true,
		Interfaces: func() ([]Interface, error) {
			return []Interface{{Name: "lo"}, {
				Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.5"), netip.MustParseAddr("192.168.1.100")},
				Networks: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")},
			}}, nil
		},
		ReadFile: func(path string) ([]byte, error) {
			if text, ok := m.files[path]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
		Look: func(program string) (string, error) {
			for line := range m.prints {
				if line == program || strings.HasPrefix(line, program+" ") {
					return "/usr/sbin/" + program, nil
				}
			}
			return "", exec.ErrNotFound
		},
		Run: func(_ context.Context, program string, args ...string) (string, error) {
			line := strings.Join(append([]string{program}, args...), " ")
			if text, ok := m.prints[line]; ok {
				return text, nil
			}
			return "", fmt.Errorf("%s: exit status 1", line)
		},
		ServerTimeout: func(context.Context) (time.Duration, error) { return m.timeout, nil },
		Refused:       func(config.Config) []folder.Refusal { return m.refused },
		Owners:        func() map[string]string { return map[string]string{"111": "vipd", "222": "nginx"} },
		Words: func(program string) []string {
			switch {
			case program == "etcd":
				return m.words
			case slices.Contains(m.programs, program):
				return []string{program}
			}
			return nil
		},
	}
}

// trialOf returns a fake mode whose trial fails with err, or works if err is nil.
func trialOf(name config.ModeName, forwards bool, err error) modes.Mode {
	return modes.Mode{Name: name, Needs: dataplane.Needs{Forward: forwards}, New: func(context.Context, config.Config, *slog.Logger) (dataplane.Dataplane, error) {
		if err != nil {
			return nil, err
		}
		return userspace.New(userspace.Options{Intercept: userspace.Bind})
	}}
}

func (m *fakeHost) frontend(key string, nodePort bool) {
	k, err := balancer.ParseKey(key)
	if err != nil {
		panic(err)
	}
	m.Frontends = append(m.Frontends, Frontend{Key: k, NodePort: nodePort, Service: "web"})
}

// without formats each finding as "CHECK: LEVEL: TEXT", except findings of one level.
func without(all []Finding, level Level) []string {
	var lines []string
	for _, f := range all {
		if f.Level != level {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", f.Check, f.Level, f.What))
		}
	}
	return lines
}

// findingCase is a change to a host that has no findings, and the expected findings after the
// change.
type findingCase struct {
	name   string
	change func(*fakeHost)
	want   []string
}

// examineEach examines each case's changed host, and compares its findings with the expected
// findings. It ignores findings of level OK.
func examineEach(t *testing.T, host func() *fakeHost, cases []findingCase) {
	t.Helper()
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			m := host()
			if test.change != nil {
				test.change(m)
			}
			if d := cmp.Diff(test.want, without(Examine(t.Context(), m.Host), OK)); d != "" {
				t.Errorf("findings except level ok (-want +got):\n%s", d)
			}
		})
	}
}
