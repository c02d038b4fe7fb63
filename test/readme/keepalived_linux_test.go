package readme

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/test/lab"
	"vipd/test/program"
)

// fault causes a fault on the host that holds the addresses. The returned function end ends the
// fault.
type fault func(*pair, *router) (end func())

// faults returns the faults in docs/gateway.md's table.
func faults() map[string]fault {
	hangs := func(processes func(*router) []int) fault {
		return func(_ *pair, m *router) func() {
			all := processes(m)
			m.signal(unix.SIGSTOP, all...)
			end := sync.OnceFunc(func() { m.signal(unix.SIGCONT, all...) })
			m.t.Cleanup(end) // runs before m.end, which would wait for a stopped process
			return end
		}
	}
	return map[string]fault{
		"vipd is killed and stays dead":      func(_ *pair, m *router) func() { m.vipd.Kill(); return m.startVipd },
		"vipd hangs":                         hangs(func(m *router) []int { return []int{m.vipd.Pid()} }),
		"keepalived hangs, or the host dies": hangs((*router).keepalived),
		"keepalived's main process is killed": func(_ *pair, m *router) func() {
			all := m.keepalived()
			m.signal(unix.SIGKILL, all[0])
			return func() { m.reap(all); m.startKeepalived() }
		},
		"keepalived's VRRP process is killed": func(_ *pair, m *router) func() {
			m.signal(unix.SIGKILL, m.keepalived()[1])
			return func() {}
		},
		"both keepalived processes are killed": func(_ *pair, m *router) func() {
			all := m.keepalived()
			m.signal(unix.SIGSTOP, all...) // neither process may react when the other stops
			m.signal(unix.SIGKILL, all...)
			m.reap(all)
			return m.startKeepalived
		},
		"the hosts don't receive each other's adverts": func(p *pair, _ *router) func() {
			for _, m := range p.hosts {
				m.Exec("nft", "table ip deaf { chain input { type filter hook input priority filter; ip protocol vrrp drop; }; }")
			}
			return func() {
				for _, m := range p.hosts {
					m.Exec("nft", "delete", "table", "ip", "deaf")
				}
			}
		},
	}
}

// TestKeepalived runs the real keepalived with the files in examples/keepalived. A host's addresses
// must move as in docs/gateway.md's table, whether vipd or keepalived was started first.
func TestKeepalived(t *testing.T) {
	lab.Need(t, "keepalived", "ip", "nft", "unshare")
	l, bin, faults := lab.New(t), program.Bin(t), faults()
	rows := table(t)
	if len(rows) != len(faults) {
		t.Errorf("docs/gateway.md lists %d faults, want the %d faults of this test", len(rows), len(faults))
	}
	var all sync.WaitGroup
	defer all.Wait()
	for i, row := range rows {
		begin, ok := faults[row.fault]
		if !ok {
			t.Errorf("docs/gateway.md lists %q, which no test covers", row.fault)
			continue
		}
		p := newPair(l)
		all.Go(func() { // the faults run in parallel, because each test waits for timers of VRRP
			t.Run(row.fault, func(t *testing.T) {
				p.serve(t, bin, i%2 == 0)
				if row.two == "never" {
					p.moves(begin)
				} else {
					p.splits(begin)
				}
			})
		})
	}
}

type row struct{ fault, two string }

// table reads docs/gateway.md's table. A row has the fault, when another host has the addresses,
// and whether two hosts have them.
func table(t *testing.T) (rows []row) {
	t.Helper()
	_, text, _ := strings.Cut(read(t, filepath.Join("..", "..", "docs", "gateway.md")), "## Failover without etcd")
	for line := range strings.Lines(text) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			rows = append(rows, row{strings.TrimSpace(cells[1]), strings.TrimSpace(cells[3])})
		}
	}
	if len(rows) < 2 {
		t.Fatal("docs/gateway.md lacks its table of faults")
	}
	return rows[2:] // the rows below the headings
}

// moves causes a fault on the host that holds the addresses. The addresses must move, and neither
// the fault nor its end may lead to two holders.
func (p *pair) moves(begin fault) {
	two := p.watch()
	m := p.holder()
	p.wait("check-vipd to have renewed the addresses", m.renewed) // for about a second after a move, the addresses have no lifetime
	before, began := m.waited(), time.Now()
	end := begin(p, m)
	p.wait("the addresses to leave", func() bool { return !m.hasAddress(moved[0]) && !m.hasAddress(moved[1]) })
	left := time.Since(began)
	p.wait("them to be back", func() bool { return p.held(1) })
	p.t.Logf("the addresses left after %.1f s, and were back after %.1f s", left.Seconds(), time.Since(began).Seconds())
	p.waitForOneHolder()
	end()
	p.wait("the host to be ready again", func() bool { return m.waited() > before })
	p.waitForOneHolder()
	if two() {
		p.t.Error("an address was on two hosts at the same time")
	}
}

// splits checks that a fault leads to two holders, and that the fault's end leads to one holder.
func (p *pair) splits(begin fault) {
	began := time.Now()
	end := begin(p, p.holder())
	p.wait("both to hold the addresses", func() bool { return p.held(2) })
	p.t.Logf("both held the addresses after %.1f s", time.Since(began).Seconds())
	p.wait("both to answer ARP", func() bool { return p.answers() == 2 })
	began = time.Now()
	end()
	p.waitForOneHolder()
	p.t.Logf("one held them again after %.1f s", time.Since(began).Seconds())
}
