package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/doctor"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
	"vipd/dataplane/failover"
	"vipd/dataplane/host"
	"vipd/dataplane/ipvs"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
)

func doctorVerb() *cli.Verb {
	return &cli.Verb{
		Name: "doctor", Brief: "show what works on this host, what does not, and how to fix it",
		About: `Examines this host: which modes work, why the others do not, and which mode
auto selects; the kernel's virtual servers; tools, kernel and sysctls; other
programs that interfere; services without a usable endpoint; and how traffic
reaches each VIP. Each finding is ok, a note, a warning or a problem. It has
the reason, and the command that fixes it or shows more.

It changes nothing, but testing a mode may load kernel modules. No daemon is
needed; if one runs, doctor reads its mode and VIPs. Without root, doctor lists
what it can't read. The exit code is 1 if there is a problem.`,
		Example: "sudo vipctl doctor",
		Formats: []string{cli.FormTable, cli.FormJSON},
		Run:     runDoctor,
	}
}

func runDoctor(c *cli.Call) error {
	findings := doctor.Examine(c, examined(c))
	err := c.Show(findings, func() string { return findingsText(c.Printer, findings) })
	if err == nil && slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Level == doctor.Problem }) {
		return cli.ErrReported
	}
	return err
}

// examined returns this host with its vipd's state. If vipd does not answer, it uses the
// configuration file's services instead.
func examined(c *cli.Call) doctor.Host {
	h := doctor.ThisHost()
	h.Modes, h.Config = modes.All(), config.Default()
	file := c.Flags.String("config")
	h.ConfigFile = file
	conf, problems, err := config.Load(file)
	switch {
	case err == nil:
		h.Config = conf
		if i := slices.IndexFunc(problems, isError); i >= 0 {
			h.ConfigProblem = problems[i].String()
		}
	case !errors.Is(err, fs.ErrNotExist) || file != config.DefaultFile:
		h.ConfigProblem = cli.OneLine(err.Error())
	}
	h.Recorded = func() ([]balancer.Key, error) { return ipvs.Recorded(h.Config.RunDir) }
	h.Fence = failover.Trial
	h.Elsewhere = failover.Elsewhere
	h.Neighbours = failover.Neighbours
	h.Owner = func() (*api.OwnerStatus, error) {
		owner := api.NewOwnerClient(filepath.Join(h.Config.RunDir, api.OwnerSocket))
		defer owner.Close()
		return owner.Status(c)
	}
	h.Members = func(ctx context.Context) ([][]string, error) { return etcdMembers(ctx, client.Config(h.Config.Etcd)) }
	h.Held = func() (map[netip.Addr]string, error) { return host.InLedger(h.Config.RunDir) }
	if askVipd(c, &h) {
		return h
	}
	d, err := readDefinitions(file)
	if err != nil {
		return h // the file's problem is already reported
	}
	mode, _ := planned(h.Config.Mode)
	h.Frontends = lists.Mapped(d.compile("", mode.Capabilities()), doctor.FrontendOf)
	h.Problems = d.problems
	return h
}

// askVipd reads a running vipd's state into h. It returns false if no vipd answers.
func askVipd(c *cli.Call, h *doctor.Host) bool {
	status, err := cli.AskDaemon(c, (*api.Client).Status)
	if err != nil {
		h.NoDaemon = cli.OneLine(err.Error())
		return false
	}
	frontends, err := cli.AskDaemon(c, (*api.Client).Frontends)
	if err != nil {
		return false
	}
	h.Status, h.Problems = &status, status.Problems
	h.Frontends = lists.Mapped(frontends, func(f api.Frontend) doctor.Frontend {
		states := lists.Mapped(f.Backends, func(b api.Backend) balancer.BackendState { return b.State })
		frontend := doctor.Frontend{Key: f.Key, NodePort: f.NodePort, Service: f.Service, Scheduler: f.Scheduler, FromClients: f.Source == balancer.ClientSource, Idle: doctor.Idle(states)}
		for _, b := range f.Backends {
			if at, err := netip.ParseAddrPort(b.Address); err == nil {
				frontend.Backends = append(frontend.Backends, at)
				frontend.AddDirect(f.Forward, at, b.State)
			}
		}
		return frontend
	})
	return true
}

// findingsText formats each check's name, followed by its findings with reasons and commands.
func findingsText(p *cli.Printer, findings []doctor.Finding) string {
	const margin = 10
	var b strings.Builder
	check := ""
	counts := map[doctor.Level]int{}
	for _, f := range findings {
		counts[f.Level]++
		if f.Check != check {
			check = f.Check
			fmt.Fprintln(&b, check)
		}
		level := fmt.Sprintf("  %-*s", margin-2, f.Level)
		for i, line := range table.Wrap(table.Line(f.What), p.LineWidth()-margin) {
			if i == 0 {
				b.WriteString(p.Paint(level, levelStyle(f.Level)) + line + "\n")
			} else {
				fmt.Fprintf(&b, "%*s%s\n", margin, "", line)
			}
		}
		for _, line := range table.Wrap(table.Line(f.Why), p.LineWidth()-margin-2) {
			fmt.Fprintf(&b, "%*s%s\n", margin+2, "", p.Paint(line, table.Faint))
		}
		if f.Fix != "" {
			fmt.Fprintf(&b, "%*s$ %s\n", margin+2, "", table.Line(f.Fix))
		}
	}
	fmt.Fprintf(&b, "%s, %s, %s\n", wording.Count(counts[doctor.Problem], "problem"), wording.Count(counts[doctor.Warning], "warning"), wording.Count(counts[doctor.Note], "note"))
	return b.String()
}

func levelStyle(l doctor.Level) table.Style {
	switch l {
	case doctor.OK:
		return table.Good
	case doctor.Problem:
		return table.Bad
	case doctor.Warning:
		return table.Notice
	}
	return table.Plain
}

// etcdMembers returns each etcd member's URLs.
func etcdMembers(ctx context.Context, config client.Config) ([][]string, error) {
	w, err := etcd.NewStore(config)
	if err != nil {
		return nil, err
	}
	all, err := w.Members(ctx)
	return all, errors.Join(err, w.Close())
}
