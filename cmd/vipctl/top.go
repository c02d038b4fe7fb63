package main

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/rates"
	"vipd/cmd/internal/table"
)

func topVerb() *cli.Verb {
	return &cli.Verb{
		Name: "top", Args: "[SERVICE]", Brief: "show live rates of services and endpoints",
		About: `Shows each service's new connections and bytes per second, open connections,
endpoints in use, and a bar chart of new connections in the last minutes. With
SERVICE, it shows the service's endpoints. The last line has the totals.

Keys: the arrow keys or j and k select a row; Enter shows a service's
endpoints, then a single endpoint; Esc goes back; s sorts by the next column;
r reverses the order; / filters by name; ? lists the keys; q quits.

With --once, with -o json, or if the output is not a terminal, it prints the
rates of one interval and exits.`,
		Example: "vipctl top --once",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "once", Usage: "print the rates of one interval, and exit"},
			&cli.DurationFlag{Name: "interval", Value: 2 * time.Second, Usage: "measure rates over this `TIME`, 100ms or more"},
		},
		Formats: []string{cli.FormTable, cli.FormJSON}, MaxArgs: 1, Complete: cli.InTurn(serviceNames), Run: runTop,
	}
}

// minInterval is the minimum interval between requests, which limits the load on the daemon.
const minInterval = 100 * time.Millisecond

func runTop(c *cli.Call) error {
	if c.Flags.Duration("interval") < minInterval {
		return cli.WrongUse("--interval %s is too short: use %s or more", c.Flags.Duration("interval"), minInterval)
	}
	service := balancer.Name(plainService(c.Argument(0)))
	if service != "" {
		if err := isService(c, string(service)); err != nil {
			return err
		}
	}
	if c.Flags.Bool("once") || !c.OutTerminal || c.Format == cli.FormJSON {
		return topOnce(c, service)
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	s := &screen{Printer: c.Printer, interval: c.Flags.Duration("interval"), service: service, given: service != ""}
	keys, out := c.Stdin, c.Stdout
	if f, ok := keys.(*os.File); ok && !cli.Terminal(f) {
		keys, s.keyless = nil, true
	}
	if f, ok := out.(*os.File); ok {
		out = quietTerminal{f}
	}
	s.ask = func() tea.Msg {
		t, err := client.Traffic(c)
		return countsReply{t, err}
	}
	_, err = tea.NewProgram(s, tea.WithContext(c), tea.WithInput(keys), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	if c.Err() != nil {
		return nil // Ctrl-C is the normal end
	}
	return err
}

// quietTerminal is a terminal to which no queries are written. Otherwise the shell could read a
// late answer to a query as typed text.
type quietTerminal struct{ *os.File }

// Write writes b without the queries about the kitty keyboard protocol, synchronized output and
// character widths.
func (u quietTerminal) Write(b []byte) (int, error) {
	_, err := strings.NewReplacer("\x1b[?u", "", "\x1b[?2026$p", "", "\x1b[?2027$p", "").WriteString(u.File, string(b))
	return len(b), err
}

func topOnce(c *cli.Call, service balancer.Name) error {
	var w rates.Window
	for i := range 2 {
		if i > 0 {
			select {
			case <-c.Done():
				return c.Err()
			case <-time.After(c.Flags.Duration("interval")):
			}
		}
		t, err := cli.AskDaemon(c, func(client *api.Client, ctx context.Context) (api.Traffic, error) {
			return client.TrafficOf(ctx, service)
		})
		if err != nil {
			return err
		}
		w.Add(t)
	}
	rows := w.Services()
	if service != "" {
		rows = w.Endpoints(service)
	}
	lines := lists.Mapped(rows, topJSON)
	return c.PrintRows(lines, topTable(withTotal(rows), service != "", order{}, 0), "there is nothing to show")
}

// topLine is a row as JSON.
type topLine struct {
	Service  balancer.Name         `json:"service"`
	Endpoint string                `json:"endpoint,omitempty"`
	Port     string                `json:"port,omitempty"`
	State    balancer.BackendState `json:"state,omitempty"`
	Up       int                   `json:"up"`
	Of       int                   `json:"endpoints"`
	Ports    api.Use               `json:"ports,omitempty"`
	Active   uint64                `json:"active"`
	New      float64               `json:"new_per_second"`
	// Unanswered is the number of unanswered connections since the daemon started.
	Unanswered uint64  `json:"unanswered"`
	In         float64 `json:"bytes_in_per_second"`
	Out        float64 `json:"bytes_out_per_second"`
}

func topJSON(r rates.Row) topLine {
	l := topLine{Service: r.Service, Up: r.Up, Of: r.Of, Ports: r.Use, Active: r.Active, New: r.New, Unanswered: r.Unanswered, In: r.In, Out: r.Out}
	if e := r.Endpoint; e != nil {
		l.Endpoint = e.Address
		l.Port = e.Port
		l.State = e.State
	}
	return l
}

// order is a sort order of rows. by is an index into orders, and reverse inverts the order.
type order struct {
	by      int
	reverse bool
}

// orders lists the sort orders. The first order has no title, and keeps the rows sorted by name.
var orders = []struct {
	title string
	less  func(a, b *rates.Row) int
}{
	{"", nil},
	{"NEW/S", func(a, b *rates.Row) int { return cmp.Compare(b.New, a.New) }},
	{"ACTIVE", func(a, b *rates.Row) int { return cmp.Compare(b.Active, a.Active) }},
	{"IN/S", func(a, b *rates.Row) int { return cmp.Compare(b.In, a.In) }},
	{"OUT/S", func(a, b *rates.Row) int { return cmp.Compare(b.Out, a.Out) }},
	{"UP", func(a, b *rates.Row) int { return cmp.Compare(a.Up*max(b.Of, 1), b.Up*max(a.Of, 1)) }},
}

func (o order) sort(rows []rates.Row) {
	if less := orders[o.by].less; less != nil {
		slices.SortStableFunc(rows, func(a, b rates.Row) int { return less(&a, &b) })
	}
	if o.reverse {
		slices.Reverse(rows)
	}
}

// totalName is the name of the totals row.
const totalName = "TOTAL"

// withTotal returns the rows and, if there are several, a row with their sums.
func withTotal(rows []rates.Row) []rates.Row {
	if len(rows) < 2 {
		return rows
	}
	total := rates.Row{Service: totalName}
	if rows[0].Endpoint != nil {
		total.Endpoint = &api.EndpointTraffic{Address: totalName}
	}
	for _, r := range rows {
		total.New += r.New
		total.In += r.In
		total.Out += r.Out
		total.Active += r.Active
		total.Unanswered += r.Unanswered
		total.Up += r.Up
		total.Of += r.Of
		total.NoBytes = total.NoBytes || r.NoBytes
		for len(total.Past) < len(r.Past) {
			total.Past = append([]float32{0}, total.Past...)
		}
		for i, rate := range r.Past { // align the rates by the latest, which is the last
			total.Past[len(total.Past)-len(r.Past)+i] += rate
		}
	}
	total.NoBytes = total.NoBytes && total.In+total.Out == 0
	total.Use = api.Use{{Up: total.Up, Of: total.Of}}
	return append(slices.Clone(rows), total)
}

// topTable lists services, or a service's endpoints. spark is the width of the sparklines in
// characters.
func topTable(rows []rates.Row, endpoints bool, o order, spark int) *table.Table {
	title := func(text string) string {
		if o.by > 0 && orders[o.by].title == text {
			return text + "*"
		}
		return text
	}
	column := func(text string, skip bool) table.Column {
		return table.Column{Title: title(text), Right: true, Skip: skip}
	}
	named := slices.ContainsFunc(rows, func(r rates.Row) bool { return r.Endpoint != nil && r.Endpoint.Port != "" })
	t := table.New(
		table.Column{Title: "SERVICE", Skip: endpoints}, table.Column{Title: "ENDPOINT", Skip: !endpoints},
		table.Column{Title: "PORT", Skip: !endpoints || !named}, column("UP", endpoints),
		table.Column{Title: "STATE", Skip: !endpoints, Style: stateStyle}, table.Column{Title: "HEALTH", Skip: !endpoints, Style: stateStyle},
		column("WEIGHT", !endpoints), column("NEW/S", false), column("ACTIVE", false),
		table.Column{Title: "UNANSWERED", Right: true, Style: badCount, Skip: !slices.ContainsFunc(rows, func(r rates.Row) bool { return r.Unanswered > 0 })},
		column("IN/S", endpoints), column("OUT/S", endpoints),
		table.Column{Title: "NEW CONNECTIONS", Skip: spark == 0},
	)
	for _, r := range rows {
		e := cmp.Or(r.Endpoint, &api.EndpointTraffic{})
		weight := strconv.Itoa(e.Weight)
		if e.Address == totalName {
			weight = ""
		}
		t.Row(string(r.Service), e.Place(), e.Port, r.Use.Text("/"), string(e.State), string(e.Health), weight,
			rateText(r.New), strconv.FormatUint(r.Active, 10), strconv.FormatUint(r.Unanswered, 10), r.BytesIn(), r.BytesOut(), rates.Spark(r.Past, spark))
	}
	return t
}

// rateText formats a rate, with one decimal below 100.
func rateText(v float64) string {
	if v > 0 && v < 100 {
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}
