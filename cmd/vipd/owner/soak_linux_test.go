package owner

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestWorstGap measures how long no host answers when a VIP moves and when its owner has a fault.
// docs/ownership.md contains the results.
func TestWorstGap(t *testing.T) {
	n := wait.Soak(0, 20)
	if n == 0 {
		t.Skip("needs to measure for minutes, which only make soak does")
	}
	all := []fault{planned, killed, stopped, powerOff, cutOff, lanLost, cutFromEtcd}
	for mode, faults := range map[string][]fault{"nftables": all, "iptables": all, "userspace": append(all, frozenDaemon, killedDaemon)} {
		for _, c := range faults {
			t.Run(mode+"/"+c.name, func(t *testing.T) { newFleet(t, mode, etcdkit.Options{}).worst(c, n) })
		}
	}
	t.Run("etcd frozen for minutes", func(t *testing.T) {
		f := newFleet(t, "nftables", etcdkit.Options{})
		f.worst(f.etcdFrozen(3*time.Minute), 1)
	})
}

// worst injects a fault into the owner n times.
func (f *fleet) worst(c fault, n int) {
	f.t.Helper()
	var gaps []time.Duration
	for range n {
		if c.name == frozenDaemon.name || c.name == killedDaemon.name {
			time.Sleep(21 * time.Second) // a VIP that has moved three times within a minute stays for a minute
		}
		gaps = append(gaps, f.meets(c))
	}
	logGaps(f.t, c.name, gaps)
	f.t.Logf("an owner waited %s for a processor at worst", f.late().Round(time.Millisecond))
}

func logGaps(t *testing.T, what string, gaps []time.Duration) {
	t.Helper()
	slices.Sort(gaps)
	n := len(gaps)
	t.Logf("%s, %d times: nobody answered for %s (median), %s (worst)", what, n, gaps[n/2].Round(time.Millisecond), gaps[n-1].Round(time.Millisecond))
}

// TestCostAtRest measures how much 10,000 idle VIPs cost three hosts. The VIPs are announced every
// second, and then every minute, which is the default.
func TestCostAtRest(t *testing.T) {
	n := wait.Soak(0, 10000)
	if n == 0 {
		t.Skip("needs to measure for minutes, which only make soak does")
	}
	f := newFleet(t, "nftables", etcdkit.Options{})
	f.waitForOwner()
	began := time.Now()
	f.more(n)
	t.Logf("%d VIPs have owners after %s", n, time.Since(began).Round(time.Second))
	f.waitForOwner()
	// The first announcements are complete when each VIP has been announced four times, at 500
	// frames a second.
	const least, span = 4, 30 * time.Second
	wait.For(t, 10*time.Minute, "the first announcements", func() bool {
		return !slices.ContainsFunc(f.hosts, func(g *gateway) bool { s := g.status(); return s == nil || s.Announced < uint64(least*len(s.Bound)) })
	})
	for _, every := range []string{"1s", "60s"} {
		for _, g := range f.hosts {
			g.configure(func(text string) string {
				return strings.Replace(text, `announce_every = "1s"`, fmt.Sprintf("announce_every = %q", every), 1)
			})
		}
		time.Sleep(span) // wait until earlier announcements are complete
		before := f.reading()
		time.Sleep(span) // the measured interval
		after := f.reading()
		for _, what := range slices.Sorted(maps.Keys(after)) {
			t.Logf("announced every %s: %s: %.2f a second", every, what, (after[what]-before[what])/span.Seconds())
		}
	}
}

// reading returns counters from the hosts and from etcd.
func (f *fleet) reading() map[string]float64 {
	all := map[string]float64{}
	for _, g := range f.hosts {
		all[g.ns.Name+": CPU of vipd owner"] = seconds(f.t, g.cmd.Process.Pid)
		all[g.ns.Name+": CPU of vipd"] = seconds(f.t, g.daemon.Process.Pid)
		if err := g.ns.Do(func() error {
			link, err := netlink.LinkByName("lan")
			if err == nil {
				all[g.ns.Name+": frames"], all[g.ns.Name+": bytes"] = float64(link.Attrs().Statistics.TxPackets), float64(link.Attrs().Statistics.TxBytes)
			}
			return err
		}); err != nil {
			f.t.Fatal(err)
		}
		if s := g.status(); s != nil {
			all[g.ns.Name+": announcements"] = float64(s.Announced)
		}
	}
	m := f.etcd.Members[0]
	all["etcd: CPU"] = seconds(f.t, m.Pid())
	r, err := http.Get("http://" + m.Addr() + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains([]string{"etcd_debugging_mvcc_put_total", "etcd_mvcc_put_total", "etcd_server_proposals_applied_total", "etcd_network_client_grpc_sent_bytes_total", "etcd_network_client_grpc_received_bytes_total"}, name) {
			all["etcd: "+name], _ = strconv.ParseFloat(value, 64)
		}
	}
	return all
}

// seconds returns the CPU time that a process's threads have used. It does not read /proc/PID/stat,
// because that file only contains samples, taken at ticks that also wake the process.
func seconds(t *testing.T, pid int) (all float64) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has exited
		}
		nanoseconds, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseFloat(nanoseconds, 64)
		if err != nil {
			t.Fatal(err)
		}
		all += n / 1e9
	}
	return all
}
