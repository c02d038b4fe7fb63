package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

func statusVerb() *cli.Verb {
	return &cli.Verb{
		Name: "status", Brief: "show this node: mode, store, sync, health, addresses, problems",
		About: `Shows the state of this node: its mode and the reason for it, its store and
the applied revision, endpoints that are down, addresses, and all problems.
With -w, it is printed again after each change, until Ctrl-C. With
--exit-code, the exit code is 4 if a service has no endpoint for its clients.`,
		Example: "vipctl status -w",
		Flags:   []cli.Flag{watchFlag(), &cli.BoolFlag{Name: "exit-code", Usage: "exit with 4 if a service is down"}},
		Formats: []string{cli.FormTable, cli.FormWide, cli.FormJSON},
		Run:     runStatus,
	}
}

func runStatus(c *cli.Call) error {
	if c.Flags.Bool("watch") && c.Flags.Bool("exit-code") {
		return cli.WrongUse("--watch does not end, so --exit-code has no effect: leave out one of them")
	}
	down := false
	err := showDaemon(c, "status", (*api.Client).Status, func(s api.Status) error {
		down = isAnyServiceDown(&s)
		return c.Show(s, func() string { return statusText(c.Printer, &s) })
	})
	if err == nil && down && c.Flags.Bool("exit-code") {
		return &cli.ExitError{Code: cli.ExitDown}
	}
	return err
}

// isAnyServiceDown reports whether any service has a port without an endpoint for its clients,
// because all endpoints fail or none exists.
func isAnyServiceDown(s *api.Status) bool {
	return len(s.Health.Out) > 0 || slices.ContainsFunc(s.Problems, func(p balancer.Problem) bool { return p.Kind == balancer.Idle })
}

// sheet builds text that consists of labeled lines.
type sheet struct {
	*cli.Printer
	b strings.Builder
}

// labelWidth is the width of the labels in characters.
const labelWidth = 11

// line writes a single line without wrapping it. A line with an empty label continues the previous
// entry.
func (out *sheet) line(label, text string) { out.styled(label, text, table.Plain) }

func (out *sheet) styled(label, text string, style table.Style) {
	if text = strings.TrimRight(table.Line(text), " "); text != "" {
		text = fmt.Sprintf("%-*s%s", labelWidth, label, out.Paint(text, style))
	} else {
		text = label
	}
	fmt.Fprintln(&out.b, text)
}

// text writes text, wrapped to the terminal's width. It writes nothing if the text is empty.
func (out *sheet) text(label, text string) { out.painted(label, text, table.Plain) }

// painted is like text, but also applies a style.
func (out *sheet) painted(label, text string, style table.Style) {
	for _, l := range table.Wrap(cli.OneLine(text), out.LineWidth()-labelWidth) {
		out.styled(label, l, style)
		label = ""
	}
}

// section writes a table below its title, unless the table is empty.
func (out *sheet) section(title string, t *table.Table) {
	if t.Len() > 0 {
		text := t.Text(table.Form{Color: out.Color, Width: out.Room(2)})
		fmt.Fprintf(&out.b, "\n%s\n  %s\n", title, strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  "))
	}
}

func statusText(p *cli.Printer, s *api.Status) string {
	out := &sheet{Printer: p}
	node := s.Node
	if s.Zone != "" {
		node += " in zone " + s.Zone
	}
	out.text("node", fmt.Sprintf("%s, vipd %s, started %s", node, s.Version, ago(p, s.Started)))
	out.mode(s.Mode.InUse, s.Mode.Wanted, s.Mode.Reason, s.Mode.Fallback)
	switch detail := s.Mode.Detail; {
	case detail != "" && s.Mode.InUse == "userspace":
		out.text("", "intercept: "+detail)
	case detail != "":
		out.text("", "detail: "+detail)
	}
	out.store(&s.Store)
	out.sync(s)
	out.text("serving", fmt.Sprintf("%s, %s, %s", wording.Count(s.Services, "service"), wording.Count(s.Frontends, "frontend"), wording.Count(s.Endpoints, "endpoint")))
	out.health(&s.Health)
	out.overrides(s)
	out.pending(s.Pending)
	out.problems(s.Problems)
	if s.Ownership != "" {
		out.text("ownership", s.Ownership)
	}
	out.addresses(s.Addresses)
	return out.b.String()
}

// overrides writes the first few manual overrides, because operators may forget them.
func (out *sheet) overrides(s *api.Status) {
	const maxLines = 3
	label := "by hand"
	for _, t := range s.ByHand[:min(maxLines, len(s.ByHand))] {
		out.painted(label, fmt.Sprintf("%s/%s: %s", t.Service, t.Address, override(out.Printer, t.Override)), table.Notice)
		label = ""
	}
	if more := s.Overrides - maxLines; more > 0 {
		out.text("", fmt.Sprintf("and %d more: vipctl get endpoints -o wide", more))
	}
}

// mode writes the mode in use, the configured mode if it differs, and the reason.
func (out *sheet) mode(inUse, wanted, why string, fallback bool) {
	switch {
	case fallback:
		fmt.Fprintf(&out.b, "%-*s%s, a fallback for %s\n", labelWidth, "mode", out.Paint(table.Line(inUse), table.Bad), table.Line(wanted))
	case wanted != inUse && wanted != "":
		out.text("mode", inUse+", wanted: "+wanted)
	default:
		out.text("mode", inUse)
	}
	if why != "" {
		out.text("", "why: "+why)
	}
}

func (out *sheet) store(s *api.Store) {
	word := "connected"
	if s.Kind == "file" {
		word = "readable"
	}
	out.line("store", s.Kind+" "+s.Place)
	if s.Connected {
		out.line("", word)
		return
	}
	how := "not " + word + ": the last good state is served"
	if !s.EverRead {
		how = "not " + word + " since vipd started: only what could be read is served"
	}
	out.styled("", how, table.Bad)
	out.text("", s.Error)
}

func (out *sheet) sync(s *api.Status) {
	y := &s.Sync
	text := fmt.Sprintf("revision %d, applied", y.Applied)
	if y.Failing > 0 {
		text += " except failures"
	}
	if y.Wanted != y.Applied {
		text = fmt.Sprintf("revision %d is applied, %d is the newest", y.Applied, y.Wanted)
	}
	if !s.Ready {
		text += "; the initial state is not complete yet"
	}
	out.text("sync", text)
	if !y.Last.IsZero() {
		out.text("", fmt.Sprintf("last %s, took %s, %s", ago(out.Printer, y.Last), formatShort(y.LastDuration), wording.Count(y.LastChanges, "change")))
	}
	if n := y.Pending + y.Failing; n > 0 { // Pending does not include frontends in backoff
		out.text("", fmt.Sprintf("%s not applied yet, %d of them failing", wording.Count(n, "frontend"), y.Failing))
	}
	if y.Repairs > 0 {
		out.text("", fmt.Sprintf("repaired %s that other programs had changed", wording.Count(y.Repairs, "object")))
	}
	out.text("", y.LastError)
}

// formatShort formats a duration with about three digits.
func formatShort(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

func (out *sheet) addresses(addresses []api.Address) {
	if len(addresses) == 0 {
		out.line("addresses", "none")
		return
	}
	shown, more := slices.Clone(addresses), 0
	if len(shown) > addressLines && out.Format != cli.FormWide {
		slices.SortStableFunc(shown, func(a, b api.Address) int { return cmp.Compare(missing(a), missing(b)) })
		more = len(shown) - addressLines
		shown = shown[:addressLines]
	}
	t := table.New(table.Column{}, table.Column{}, table.Column{})
	notes := commonNotes(out.Printer, addresses)
	maps.DeleteFunc(notes, func(note string, _ []string) bool {
		return !slices.ContainsFunc(shown, func(a api.Address) bool { return cli.OneLine(a.Note) == note })
	})
	for _, a := range shown {
		note := cli.OneLine(a.Note)
		if notes[note] != nil {
			note = ""
		}
		t.Row(a.Address, heldText(a), note)
	}
	label := "addresses"
	for _, line := range strings.Split(strings.TrimSuffix(t.Text(table.Form{}), "\n"), "\n")[1:] {
		out.line(label, strings.TrimRight(strings.TrimSuffix(line, "  -"), " "))
		label = ""
	}
	if more > 0 {
		out.line("", fmt.Sprintf("and %d more: vipctl status -o wide", more))
	}
	for _, note := range slices.Sorted(maps.Keys(notes)) {
		group := notes[note]
		out.text("", wording.Some(group, 3)+": "+note)
	}
}

func heldText(a api.Address) string {
	switch {
	case a.Silent:
		return "silently on lo, for direct routing"
	case a.Held == "host" && a.Owned:
		return "owned by this host"
	case a.Held == "host":
		return "the host's own"
	case missing(a) == 0:
		return "not on this host"
	}
	return "on " + a.Held
}

// commonNotes returns the notes to print below the list of addresses, each with its addresses. They
// are notes that several addresses share, or that are too long for a line in the list. In the wide
// form, the list itself shows all notes.
func commonNotes(p *cli.Printer, addresses []api.Address) map[string][]string {
	group := map[string][]string{}
	if p.Format == cli.FormWide {
		return group
	}
	for _, a := range addresses {
		if a.Note != "" {
			group[cli.OneLine(a.Note)] = append(group[cli.OneLine(a.Note)], a.Address)
		}
	}
	const before = 39 // usual width of the label, the address and the holder
	maps.DeleteFunc(group, func(note string, group []string) bool {
		return len(group) == 1 && table.Width(note) <= p.LineWidth()-before
	})
	return group
}

// addressLines is the default maximum number of addresses that status prints. Addresses that this
// host does not hold come first.
const addressLines = 10

// missing returns a sort key. Addresses that this host does not hold sort first.
func missing(a api.Address) int {
	if a.Held == "none" || a.Held == "" {
		return 0
	}
	return 1
}

// problems writes each problem on a new line, and indents its continuation lines.
func (out *sheet) problems(problems []balancer.Problem) {
	if len(problems) == 0 {
		out.line("problems", "none")
		return
	}
	label := "problems"
	for _, p := range problems {
		indent := ""
		for _, line := range table.Wrap(problemLine(&p), out.LineWidth()-labelWidth-2) {
			out.styled(label, indent+line, severityStyle(p.Severity))
			label, indent = "", "  "
		}
	}
}
