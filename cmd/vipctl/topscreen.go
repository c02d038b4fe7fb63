package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/rates"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

// screen is top's screen on a terminal: services, one service's endpoints, or one endpoint.
type screen struct {
	*cli.Printer
	ask      func() tea.Msg
	interval time.Duration
	window   rates.Window
	err      error // error of the last request

	width, height int
	service       balancer.Name // service whose endpoints are shown; "" means that services are shown
	given         bool          // the command line named the service, so esc can't show the list of services
	keyless       bool          // no keyboard is connected
	endpoint      *api.EndpointTraffic
	order         order
	filter        string
	focus         focus // the part that keys control
	selected      int   // the selected row
}

// focus is the part of the screen that keys control.
type focus int

// These are the parts of the screen: the rows, the filter text, and the list of keys.
const (
	onRows focus = iota
	onFilter
	onKeys
)

// countsReply is the daemon's answer to a request for counters.
type countsReply struct {
	api.Traffic
	err error
}

// due triggers the next request to the daemon.
type due struct{}

// Init implements tea.Model.
func (s *screen) Init() tea.Cmd { return s.ask }

// Update implements tea.Model.
func (s *screen) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case countsReply:
		if s.err = m.err; s.err == nil {
			s.window.Add(m.Traffic)
		}
		return s, tea.Tick(s.interval, func(time.Time) tea.Msg { return due{} })
	case due:
		return s, s.ask
	case tea.KeyPressMsg:
		return s, s.pressed(m)
	case tea.PasteMsg:
		if s.focus == onFilter {
			s.filter, s.selected = s.filter+strings.Join(strings.Fields(m.Content), " "), 0
		}
	}
	return s, nil
}

func (s *screen) pressed(m tea.KeyPressMsg) tea.Cmd {
	key := m.String()
	switch {
	case s.focus == onFilter:
		s.typed(m)
		return nil
	case key == "q", key == "ctrl+c":
		return tea.Quit
	case s.focus == onKeys: // any key closes the list of keys
		s.focus = onRows
		return nil
	}
	s.choose(key)
	return nil
}

func (s *screen) typed(m tea.KeyPressMsg) {
	switch m.String() {
	case "enter":
		s.focus = onRows
	case "esc", "ctrl+c":
		s.focus, s.filter = onRows, ""
	case "backspace":
		if r := []rune(s.filter); len(r) > 0 {
			s.filter = string(r[:len(r)-1])
		}
	default:
		s.filter += m.Text
	}
	s.selected = 0
}

// choose handles a key that moves the selection, or changes which rows are shown.
func (s *screen) choose(key string) {
	switch key {
	case "up", "k":
		s.selected--
	case "down", "j":
		s.selected++
	case "pgup":
		s.selected -= s.room()
	case "pgdown":
		s.selected += s.room()
	case "home", "g":
		s.selected = 0
	case "end", "G":
		s.selected = len(s.rows()) - 1
	case "s":
		s.order.by = (s.order.by + 1) % len(orders)
	case "r":
		s.order.reverse = !s.order.reverse
	case "/":
		s.focus = onFilter
	case "?":
		s.focus = onKeys
	case "enter":
		s.enter()
	case "esc":
		s.back()
	}
	s.selected = max(0, min(s.selected, len(s.rows())-1))
}

// enter shows the selected service's endpoints, or the selected endpoint's details.
func (s *screen) enter() {
	rows := s.rows()
	if len(rows) == 0 || s.endpoint != nil {
		return
	}
	if chosen := rows[min(s.selected, len(rows)-1)]; s.service == "" {
		s.service = chosen.Service
		s.selected = 0
		s.filter = ""
	} else {
		s.endpoint = chosen.Endpoint
	}
}

// back removes the filter. If there is none, it returns to the previous list.
func (s *screen) back() {
	switch {
	case s.filter != "":
		s.filter = ""
	case s.endpoint != nil:
		s.endpoint = nil
	case s.service != "" && !s.given:
		s.service, s.selected = "", 0
	}
}

// rows returns the rows that match the filter, sorted.
func (s *screen) rows() (rows []rates.Row) {
	all := s.window.Services()
	if s.service != "" {
		all = s.window.Endpoints(s.service)
	}
	for _, r := range all {
		name := string(r.Service)
		if r.Endpoint != nil {
			name = r.Endpoint.Place() + " " + r.Endpoint.Port
		}
		if strings.Contains(name, s.filter) {
			rows = append(rows, r)
		}
	}
	s.order.sort(rows)
	return rows
}

// room returns the number of rows that fit on the screen. The other five lines are the title, an
// empty line, the table's title, the totals, and the keys.
func (s *screen) room() int { return max(1, s.height-5) }

// sparkWidth is the width of a sparkline in characters.
const sparkWidth = 20

// View implements tea.Model.
func (s *screen) View() tea.View {
	view := tea.NewView(s.text())
	view.AltScreen = true
	return view
}

// text returns the screen's content.
func (s *screen) text() string {
	if s.window.Last().At.IsZero() {
		if s.err != nil {
			return table.Line(s.err.Error()) + "\n\nq quits"
		}
		return "querying vipd ..."
	}
	lines := []string{s.title(), ""}
	switch {
	case s.focus == onKeys:
		lines = append(lines, keysText()...)
	case s.endpoint != nil:
		lines = append(lines, s.detail()...)
	default:
		lines = append(lines, s.list()...)
	}
	for len(lines) < s.height-1 {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, s.lastLine()), "\n")
}

// keysText returns the lines that explain the keys.
func keysText() []string {
	return []string{
		"up, k        choose the row above; pgup and home move further",
		"down, j      choose the row below; pgdown and end move further",
		"enter        show the endpoints of a service, or one endpoint",
		"esc          go back",
		"s, r         sort by the next column, reverse the order",
		"/            show only names that contain the text you type",
		"q, ctrl+c    quit",
		"any other key closes this list",
	}
}

// title returns the first line: the service if one is selected, the node, its mode, and the last
// error.
func (s *screen) title() string {
	t := s.window.Last()
	text := fmt.Sprintf("%s, %s mode: %s", t.Node, t.Mode, wording.Count(len(t.Services), "service"))
	if s.service != "" {
		text = fmt.Sprintf("%s on %s, %s mode: %s", s.service, t.Node, t.Mode, wording.Count(len(s.window.Endpoints(s.service)), "endpoint"))
	}
	if s.err != nil {
		text += "; " + table.Line(s.err.Error())
	}
	return s.Paint(table.Cut(text, s.width), table.Bold)
}

// list returns the table's lines, with as many rows around the selected row as fit on the screen.
func (s *screen) list() []string {
	rows := s.rows()
	if len(rows) == 0 {
		return []string{"there is nothing to show"}
	}
	s.selected = min(s.selected, len(rows)-1)
	first := max(0, min(s.selected-s.room()/2, len(rows)-s.room()))
	last := min(len(rows), first+s.room())
	shown := rows[first:last]
	if all := withTotal(rows); len(all) > len(rows) {
		shown = append(slices.Clone(shown), all[len(rows)])
	}
	text := topTable(shown, s.service != "", s.order, sparkWidth).Text(table.Form{Width: s.width - 2, Color: s.Color})
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	at := 1 + s.selected - first
	lines[at] = "> " + lines[at]
	for i := range lines {
		if i != at {
			lines[i] = "  " + lines[i]
		}
	}
	lines[at] = s.Paint(lines[at], table.Bold)
	return lines
}

func (s *screen) detail() []string {
	for _, r := range s.window.Endpoints(s.service) {
		e := r.Endpoint
		if e.Address != s.endpoint.Address || e.Port != s.endpoint.Port {
			continue
		}
		var highest float32
		for _, v := range r.Past {
			highest = max(highest, v)
		}
		return []string{
			"endpoint     " + strings.TrimSpace(e.Place()+" "+e.Port),
			"state        " + strings.TrimSpace(string(e.State)+" "+string(e.Health)),
			"weight       " + fmt.Sprint(e.Weight),
			"active       " + fmt.Sprint(e.Active),
			"connections  " + fmt.Sprint(e.Connections) + " since vipd started",
			"unanswered   " + fmt.Sprint(e.Unanswered) + " of them",
			fmt.Sprintf("new/s        %s, at most %s", rateText(r.New), rateText(float64(highest))),
			"             " + rates.Spark(r.Past, min(rates.Kept, s.width-13)),
		}
	}
	return []string{s.endpoint.Address + " is gone"}
}

// lastLine returns the last line: the keys, or the filter while the user types it.
func (s *screen) lastLine() string {
	if s.focus == onFilter {
		return "/" + s.filter + "_"
	}
	text := "q quit  ? keys  enter more  esc back  s sort  r reverse  / filter"
	if s.keyless {
		text = "Ctrl-C ends"
	}
	if s.filter != "" {
		text += ": " + s.filter
	}
	return s.Paint(table.Cut(text, s.width), table.Faint)
}
