package doctor

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
	"vipd/dataplane/userspace"
)

func TestFindingsOfModes(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "all is well"},
		{name: "a fallback", change: func(m *fakeHost) {
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "iptables", Fallback: true, Reason: "not iptables: no"}
			m.Config.Mode, m.Modes[0] = config.IPTablesMode, trialOf(config.IPTablesMode, true, errors.New("no\nnot at all"))
		}, want: []string{
			"vipd: problem: vipd uses userspace mode, although iptables is configured: not iptables: no",
			"modes: problem: iptables mode does not work here: no; not at all",
		}},
		{name: "its problems", change: func(m *fakeHost) {
			m.Problems = []balancer.Problem{{Severity: balancer.SeverityError}, {Severity: balancer.SeverityWarning}}
		}, want: []string{"vipd: warning: vipd reports problems (1)"}},
		{name: "no root", change: func(m *fakeHost) {
			m.Root, m.Status, m.NoDaemon = false, nil, "no vipd answers"
			delete(m.files, "/proc/thread-self/net/ip_tables_matches")
		}, want: []string{
			"vipd: note: no vipd answers", "modes: note: iptables mode was not tried: only root can try it",
			"modes: note: auto uses userspace mode unless a better mode works; not tried: iptables",
			"tools: note: the host's rules were not read: only root can read them",
			"kernel: note: the kernel's iptables matches can't be listed: open /proc/thread-self/net/ip_tables_matches: file does not exist",
			"firewall: note: firewalls were not read: only root can read them",
		}},
		{name: "folders that a start refuses", change: func(m *fakeHost) {
			m.refused = []folder.Refusal{{Field: "api.socket", Err: errors.New("other users can write to /tmp")}}
		}, want: []string{"vipd: problem: vipd does not start with api.socket: other users can write to /tmp"}},
		{name: "a broken config", change: func(m *fakeHost) { m.ConfigProblem = "vipd.toml:1: bad" }, want: []string{"vipd: problem: the configuration: vipd.toml:1: bad"}},
	})
}

// TestKilled examines a host whose vipd does not answer. The finding must be a problem if vipd's
// addresses are still on the host, and otherwise a note.
func TestKilled(t *testing.T) {
	for _, killed := range []bool{true, false} {
		m := newFakeHost()
		m.Status, m.NoDaemon, m.put = nil, "no vipd answers", map[netip.Addr]string{}
		want := Note
		if killed {
			m.put[netip.MustParseAddr("10.96.0.10")], want = "lo", Problem
		}
		first := Examine(t.Context(), m.Host)[0]
		if first.What != "no vipd answers" || first.Level != want {
			t.Errorf("killed = %v: finding = %s %q, want %s", killed, first.Level, first.What, want)
		}
	}
}

// TestTrialsApart runs trials with and without a running vipd. If vipd is running, the trial must
// use another run_dir, which must be removed afterwards.
func TestTrialsApart(t *testing.T) {
	for _, runs := range []bool{true, false} {
		m := newFakeHost()
		m.Config.RunDir = t.TempDir()
		if !runs {
			m.Status = nil
		}
		used := ""
		m.Modes = []modes.Mode{{Name: config.UserspaceMode, New: func(_ context.Context, c config.Config, _ *slog.Logger) (dataplane.Dataplane, error) {
			used = c.RunDir
			if _, err := os.Stat(used); err != nil {
				t.Error(err)
			}
			return userspace.New(userspace.Options{Intercept: userspace.Bind})
		}}}
		Examine(t.Context(), m.Host)
		if apart := used != m.Config.RunDir; apart != runs {
			t.Errorf("vipd running = %t: trial's run_dir = %s, vipd's run_dir = %s; want them to differ only if vipd is running", runs, used, m.Config.RunDir)
		}
		if _, err := os.Stat(used); runs && !os.IsNotExist(err) {
			t.Errorf("after the trial: Stat(%s) = %v, want an error that the directory does not exist", used, err)
		}
	}
}
