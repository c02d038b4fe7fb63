package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/modes"
	"vipd/cmd/vipd/daemon"
	"vipd/test/program"
	"vipd/test/wait"
)

func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"vipctl": main, "vipd": vipd})
}

// tests runs the package's tests. In make test, commands run a vipctl built without the race
// detector, which would delay each start by a tenth of a second. In make soak, they run the test
// binary, which has the race detector.
type tests struct{ *testing.M }

func (t tests) Run() int {
	if folder := os.Getenv(program.BinVar); folder != "" && !wait.Soaking() {
		path, err := os.MkdirTemp("", "vipctl-") // this directory contains only vipctl
		if err == nil {
			defer func() { _ = os.RemoveAll(path) }()
			err = os.Symlink(filepath.Join(folder, "vipctl"), filepath.Join(path, "vipctl"))
		}
		if err == nil {
			err = os.Setenv("PATH", path+string(os.PathListSeparator)+os.Getenv("PATH"))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return t.M.Run()
}

// vipd runs a real daemon with the configuration file vipd.toml. It writes no log. Its only flag is
// --allow-empty.
func vipd() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := daemon.New(daemon.Options{
		ConfigFile: "vipd.toml", Log: slog.New(slog.DiscardHandler), Version: "test",
		Modes: modes.All(), AllowEmpty: slices.Contains(os.Args, "--allow-empty"),
	})
	if err == nil {
		err = d.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vipd:", err)
		os.Exit(1)
	}
}

var update = flag.Bool("update", false, "write what the commands print into the scripts")

// TestScript runs the scripts in testdata/script. Each script has its own fake daemon, with the
// values of fakeDaemon.fill. It can use these commands in addition to testscript's:
//
//	exits CODE COMMAND...   runs a command, and compares its exit code
//	fake CHANGE             changes the daemon's state; the function change lists the changes
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: *update, RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			socket := filepath.Join(e.WorkDir, "d.sock")
			d, stop, err := serveFake(socket)
			if err != nil {
				return err
			}
			e.Defer(stop)
			e.Values["daemon"] = d
			e.Setenv("VIPCTL_SOCKET", socket)
			e.Setenv("SUDO_USER", "ana")
			e.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each command takes a second longer
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "namespaces":
			default:
				return false, fmt.Errorf("there is no condition %q", name)
			}
			return exec.Command("unshare", "-rn", "true").Run() == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "fake": change},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	for try := 1; try < 5 && len(args) > 2 && args[2] == "__complete" && ts.ReadFile("stdout") == ""; try++ { // the completion is empty if the daemon answered too late
		err = ts.Exec(args[1], args[2:]...)
	}
	if err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("running %q: %v", args[1:], err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%q: exit code = %d, want %d", args[1:], got, want)
	}
}

// change implements the script command "fake".
func change(ts *testscript.TestScript, _ bool, args []string) {
	d := ts.Value("daemon").(*fakeDaemon)
	if len(args) != 1 {
		ts.Fatalf("usage: fake CHANGE")
	}
	edit, ok := changes(d)[args[0]]
	if !ok {
		ts.Fatalf("there is no change %q", args[0])
	}
	d.change(edit)
}

func changes(d *fakeDaemon) map[string]func() {
	return map[string]func(){
		"empty": func() {
			d.services, d.frontends, d.conns, d.diff = nil, nil, nil, nil
			d.status.Services, d.status.Frontends, d.status.Endpoints = 0, 0, 0
			d.status.Addresses, d.status.Problems = nil, nil
		},
		"idle": d.idle,
		"trouble": func() {
			d.status.Mode = api.Mode{InUse: "userspace", Wanted: "iptables", Fallback: true, Reason: "not iptables: iptables-restore is not installed"}
			d.status.Store.Connected, d.status.Store.Error = false, "open /etc/vipd/vipd.toml: permission denied"
			d.status.Sync = api.Sync{Wanted: 14, Applied: 12, Pending: 3, Failing: 1, Last: time.Now().Add(-2*time.Hour - 20*time.Second), LastDuration: 2 * time.Second, LastChanges: 1, LastError: "10.96.0.10:80/tcp: adding the address: no such device"}
			d.status.Ready = false
		},
		"notes": func() {
			shared := "this kernel has no dummy devices, so that addresses of services are on lo\nmodprobe dummy makes them"
			d.status.Addresses = []api.Address{
				{Address: "10.96.0.10", Held: "lo", Note: shared}, {Address: "10.96.0.11", Held: "lo", Note: shared},
				{Address: "10.96.0.12", Held: "none", Note: "no such device"},
				{Address: "fd00:96::10", Held: "none", Note: "adding the address: an error that goes on for longer than a line"},
			}
			d.status.Problems = []balancer.Problem{{Field: "mode", Text: "the first reason\nthe second reason, which is long enough to need a line of its own"}}
		},
		"needsrestart": func() {
			for _, field := range []string{"addresses", "ownership"} {
				d.status.Problems = append(d.status.Problems, balancer.Problem{
					Severity: balancer.SeverityWarning, Kind: balancer.NeedsRestart, Origin: balancer.Origin{File: "moded.toml"}, Field: field, Text: "has changed",
				})
			}
		},
		"manyaddresses": func() {
			for i := range 12 {
				d.status.Addresses = append(d.status.Addresses, api.Address{Address: fmt.Sprint("10.97.0.", i), Held: "vipd0"})
			}
		},
		"manynotes": func() {
			for i := range d.status.Addresses {
				d.status.Addresses[i].Note = "this kernel has no dummy devices"
			}
		},
		"remembered": func() {
			live := d.conns[0]
			for i, state := range []string{"time-wait", "idle", "time-wait"} {
				n := live
				n.Client, n.State = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), uint16(40000+i)), state
				d.conns = append(d.conns, n)
			}
		},
		"onlyremembered": func() { d.conns = d.conns[len(d.conns)-3:] }, // use after "remembered"
		"unnoted":        func() { d.conns[0].Since, d.conns[0].In, d.conns[0].Out = time.Time{}, 0, 0 },
		"roundrobin": func() {
			for i := range d.frontends {
				d.frontends[i].Scheduler = balancer.RoundRobin
			}
		},
		"neverread": func() { d.status.Store.EverRead = false },
		"differences": func() {
			k, _ := balancer.ParseKey("10.96.0.10:80/tcp")
			d.diff = []api.Difference{
				{Key: k, Service: "web", What: "missing", Why: "adding the address: no such device\nwriting the ledger: no space\nwriting the ledger: no space"},
				{Key: balancer.Key{Addr: k.Addr, Port: 81, Proto: balancer.TCP}, What: "extra"},
			}
		},
		"badreload": func() {
			d.reload.Problems = []balancer.Problem{
				{Severity: balancer.SeverityError, Origin: balancer.Origin{File: "/etc/vipd/vipd.toml", Line: 7}, Service: "web", Field: "ports[0].port", Text: "is missing"},
			}
		},
		"changes": func() {
			d.reload.ReloadChanges = api.ReloadChanges{
				Added: []balancer.Name{"api", "mail"}, Changed: []balancer.Name{"dns"}, Removed: []balancer.Name{"old"},
				Kept: []balancer.Name{"gone", "web"}, Vanished: []balancer.Name{"gone"},
			}
		},
		"keptreload": func() { // use after "changes"
			d.reload.ReloadChanges = api.ReloadChanges{Kept: []balancer.Name{"web"}}
		},
		"latereload": func() {
			d.reload = api.Reload{Revision: 13, Services: 2, Problems: []balancer.Problem{}, Unapplied: true}
		},
		"nearestreload": func() {
			d.reload.Problems = []balancer.Problem{
				{Severity: balancer.SeverityNearest, Origin: balancer.Origin{File: "/etc/vipd/vipd.toml", Line: 3}, Service: "web", Field: "scheduler", Text: "this mode has no lc; it takes random, the nearest"},
			}
		},
		"passes": func() { d.check.Outcome, d.check.Text, d.check.Health = "passed", "answered 200 OK", balancer.HealthUp },
		"notrun": func() {
			d.check.Outcome, d.check.Text, d.check.Health, d.check.Exchange = "not run", "not run: too many open files", "", ""
		},
		"panic": func() {
			d.status.Health = api.HealthCount{Checked: 9, Down: 6, Unknown: 1, Panic: []balancer.Name{"web", "api"}}
		},
		"newmistake": func() {
			p := balancer.Problem{
				Severity: balancer.SeverityError, Origin: balancer.Origin{File: "/etc/vipd/vipd.toml", Line: 17}, Service: "web2", Field: "vips", Text: "is missing",
			}
			d.status.Problems = append(d.status.Problems, p)
			d.services = append(d.services, api.Service{Name: "web2", Origin: p.Origin, Problems: []balancer.Problem{p}, Refused: true})
		},
		"renamed": func() {
			draining := true
			for _, address := range []string{"192.168.1.21", "192.168.1.29"} {
				d.overrides = append(d.overrides, api.OverrideTarget{Service: "dns", Address: address, Override: &balancer.Override{Draining: &draining}})
			}
			d.overrides = append(d.overrides, api.OverrideTarget{Service: "web", Address: "192.168.1.30", Override: &balancer.Override{Draining: &draining}})
			d.services[0].Lookups = []api.Lookup{{Kind: balancer.HostLookup, Name: "ns1.example.org.", Endpoints: 1, Failure: "SERVFAIL"}}
		},
		"ranged": func() {
			for i := range d.services[1].Endpoints {
				if e := &d.services[1].Endpoints[i]; e.Address == "192.168.1.11:8080" {
					e.Address, e.TargetPorts = "192.168.1.11:8000", balancer.NewPortRange(8000, 8999)
				}
			}
		},
		"silent": func() { d.services[1].Endpoints[1].Unanswered = 31 },
		"secret": func() {
			d.services[1].Definition["health"] = map[string]any{"type": "http", "headers": map[string]any{"X-Auth": "sesame", "X-Probe": "vipd"}, "steps": []any{map[string]any{"send": "AUTH sesame\r\n", "expect": "+OK"}}}
		},
		"outage": func() {
			d.status.Health = api.HealthCount{Checked: 9, Endpoints: 6, Down: 6, Unable: 2, Out: []balancer.Name{"web", "api"}}
		},
		"deadport": func() {
			all := func(state balancer.BackendState, port string) (all []api.Endpoint) {
				for i := range 3 {
					all = append(all, api.Endpoint{Service: "web", Address: fmt.Sprintf("192.168.1.%d:80", 11+i), Port: port, Configured: 1, State: state})
				}
				return all
			}
			d.services[1].Endpoints = append(all(balancer.Active, "http"), all(balancer.Down, "metrics")...)
			d.status.Health = api.HealthCount{
				Checked: 6, Endpoints: 3, Down: 3, Out: []balancer.Name{"web"},
				Services: []api.ServiceHealth{{Service: "web", Ports: api.Use{{Port: "http", Up: 3, Of: 3}, {Port: "metrics", Of: 3}}}},
			}
		},
		"manyout": func() {
			for i := range 12 {
				d.status.Health.Out = append(d.status.Health.Out, balancer.Name(fmt.Sprintf("s%d", i)))
			}
		},
		"allup": func() { d.status.Health = api.HealthCount{Checked: 2} },
		"warnedreload": func() {
			d.reload.Problems = []balancer.Problem{{Severity: balancer.SeverityWarning, Field: "mode", Text: "has changed: restart vipd to apply it"}}
		},
	}
}

// idle ends all connections.
func (d *fakeDaemon) idle() {
	d.conns = nil
	for i := range d.services {
		for j := range d.services[i].Endpoints {
			d.services[i].Endpoints[j].Active = 0
		}
	}
}
