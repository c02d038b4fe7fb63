package host

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vipd/dataplane"
)

// TestVirtualServerSysctls sets the sysctls that affect virtual servers, for several kernels, with
// and without foreign virtual servers. Cleanup must restore the old values.
func TestVirtualServerSysctls(t *testing.T) {
	const conntrack, reuse, nodest, template = "net.ipv4.vs.conntrack", "net.ipv4.vs.conn_reuse_mode", "net.ipv4.vs.expire_nodest_conn", "net.ipv4.vs.expire_quiescent_template"
	fresh := map[string]string{conntrack: "0", reuse: "1", nodest: "0", template: "0"}
	tuned := map[string]string{conntrack: "1", reuse: "1", nodest: "1", template: "1"}
	sloppy := func(all map[string]string, value string) map[string]string {
		all = maps.Clone(all)
		all["net.ipv4.vs.sloppy_tcp"] = value
		return all
	}
	reused := map[string]string{conntrack: "1", reuse: "0", nodest: "1", template: "1"}
	ipvs := dataplane.Needs{Forward: true, LocalIn: true}
	for _, c := range []struct {
		name, release  string
		before, during map[string]string
		mode           dataplane.Needs
		// roams reports whether connections may move to this host from other hosts.
		left, foreign, roams bool
		problems             int
	}{
		{"a newer kernel", "6.1.0-56-amd64", fresh, tuned, ipvs, false, false, false, 0},
		{"the first without the delay", "5.9.1", fresh, tuned, ipvs, false, false, false, 0},
		{"the last with the delay", "5.8.18-300.fc33", fresh, reused, ipvs, false, false, false, 0},
		{"the first with the delay", "4.1.0", fresh, reused, ipvs, false, false, false, 0},
		{"before all that", "3.18.1", fresh, tuned, ipvs, false, false, false, 0},
		{"all set already", "5.4.0", reused, reused, ipvs, false, true, false, 0},
		{"no module yet", "6.1.0", map[string]string{}, map[string]string{}, ipvs, false, true, false, 0},
		{"some are missing", "6.1.0", map[string]string{conntrack: "0"}, map[string]string{conntrack: "1"}, ipvs, false, false, false, 0},
		{"foreign virtual servers", "5.4.0", fresh, fresh, ipvs, false, true, false, 4},
		{"not managed", "5.4.0", fresh, fresh, ipvs, true, false, false, 4},
		{"another mode", "5.4.0", fresh, fresh, dataplane.Needs{Forward: true}, false, false, false, 0},
		{"connections that stay", "6.1.0", sloppy(fresh, "0"), sloppy(tuned, "0"), ipvs, false, false, false, 0},
		{"connections from other hosts", "6.1.0", sloppy(fresh, "0"), sloppy(tuned, "1"), ipvs, false, false, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := loadLedger(t.TempDir(), "boot", "net")
			must(t, err)
			s := memorySysctls{maps.Clone(c.before), false}
			asked := 0
			st := &state{handles: handles{sys: s}, ledger: l, opts: Options{ManageSysctls: !c.left, ForeignServers: func() bool { asked++; return c.foreign }}}
			st.mode.Store(&c.mode)
			h := &tuning{state: st, release: c.release}
			must(t, h.virtualServers(c.roams))
			if !maps.Equal(s.values, c.during) {
				t.Errorf("sysctls = %v, want %v", s.values, c.during)
			}
			if len(h.serverProblems) != c.problems {
				t.Errorf("problems = %v, want %d", h.serverProblems, c.problems)
			}
			for _, p := range h.serverProblems {
				if !strings.Contains(p.Text, ": sysctl -w net.ipv4.vs.") {
					t.Errorf("problem = %q, want advice with a sysctl command", p.Text)
				}
			}
			once := asked
			must(t, h.virtualServers(c.roams))
			if c.problems == 0 && asked != once {
				t.Error("searches for foreign virtual servers = 1, want 0 because no sysctl needs a change")
			}
			if c.foreign { // then remove the foreign servers
				c.foreign = false
				must(t, h.virtualServers(c.roams))
				if len(h.serverProblems) != 0 {
					t.Errorf("after the foreign virtual servers were removed: problems = %v, want none", h.serverProblems)
				}
			}
			must(t, restoreSysctls(s, l, slices.Collect(maps.Keys(l.Sysctls))))
			if !maps.Equal(s.values, c.before) || !l.empty() {
				t.Errorf("restored sysctls = %v, want %v; ledger = %+v", s.values, c.before, l)
			}
		})
	}
}

// TestForeignServersAreLookedForRarely checks the sysctls repeatedly while foreign virtual servers
// exist. Searches for these servers must take at most a small share of the time. vipd must detect
// their removal soon.
func TestForeignServersAreLookedForRarely(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 200 * time.Millisecond, 3 * time.Second} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			l, err := loadLedger(dir, "boot", "net")
			must(t, err)
			s := memorySysctls{map[string]string{"net.ipv4.vs.conntrack": "0"}, false}
			foreign, spent := true, time.Duration(0)
			st := &state{handles: handles{sys: s}, ledger: l, opts: Options{ManageSysctls: true, ForeignServers: func() bool {
				time.Sleep(took)
				spent += took
				return foreign
			}}}
			st.mode.Store(&dataplane.Needs{Forward: true, LocalIn: true})
			h := &tuning{state: st, release: "6.1.0"}
			look := func() {
				must(t, h.virtualServers(false))
				time.Sleep(time.Second)
			}
			const long = 2 * time.Hour
			for began := time.Now(); time.Since(began) < long; look() {
				if len(h.serverProblems) == 0 && spent > 0 {
					t.Fatal("before the foreign virtual servers were removed: problems = 0, want 1")
				}
			}
			if spent > long/foreignShare*11/10 {
				t.Errorf("total time of searches within %v = %v with %v for each search, want at most %v", long, spent, took, long/foreignShare*11/10)
			}
			foreign = false
			began := time.Now()
			for len(h.serverProblems) > 0 {
				look()
			}
			if lasted := time.Since(began); lasted > max(3*time.Second, (foreignShare+2)*took) {
				t.Errorf("removal detected after %v with %v for each search, want at most %v", lasted, took, max(3*time.Second, (foreignShare+2)*took))
			}
		})
	}
}

// TestPacketCountsOfTheFastPath enables the sysctl with which the kernel counts packets in the fast
// path. With ManageSysctls, vipd enables it, otherwise the guard's rule does. If another program
// disables the sysctl, vipd must restore it or report a problem. Cleanup must restore the old
// value.
func TestPacketCountsOfTheFastPath(t *testing.T) {
	for _, managed := range []bool{true, false} {
		l, err := loadLedger(t.TempDir(), "boot", "net")
		must(t, err)
		s := memorySysctls{map[string]string{accounting: "0"}, false}
		st := &state{handles: handles{sys: s}, ledger: l, opts: Options{ManageSysctls: managed}}
		st.opts.FastPath = []string{"auto"}
		st.mode.Store(&dataplane.Needs{Forward: true, Resets: true})
		h := &tuning{state: st}
		must(t, h.countPackets())
		if len(h.sysctlProblems()) != 0 || (s.values[accounting] == "1") != managed {
			t.Errorf("managed = %v: value = %s, problems = %v, want the value 1 only if managed", managed, s.values[accounting], h.sysctlProblems())
		}
		s.values[accounting] = "1" // set by the guard's rule
		must(t, h.countPackets())
		s.values[accounting] = "0" // set by another program
		must(t, h.countPackets())
		if (len(h.sysctlProblems()) == 0) != managed || (s.values[accounting] == "1") != managed {
			t.Errorf("managed = %v: value = %s, problems = %v, want a repair if managed, otherwise a problem", managed, s.values[accounting], h.sysctlProblems())
		}
		s.values[accounting] = "1"
		must(t, restoreSysctls(s, l, slices.Collect(maps.Keys(l.Sysctls))))
		if s.values[accounting] != "0" || !l.empty() {
			t.Errorf("managed = %v: value = %s, ledger = %+v after Cleanup, want 0 and an empty ledger", managed, s.values[accounting], l)
		}
	}
}
