package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"vipd/cmd/internal/table"
	"vipd/store/etcd"
)

// describeNode is "describe node NAME".
func (c *call) describeNode(name string) error {
	if c.format == formTOML {
		return wrongUse("-o toml prints definitions, and nodes have none")
	}
	w, err := c.fleet()
	if err != nil {
		return err
	}
	all, err := c.readNodes(w)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(n nodeView) bool { return n.Node == name })
	switch {
	case i < 0:
		return noNode(all, name)
	case c.format == formJSON:
		return c.printJSON(all[i])
	}
	return c.print(c.nodeText(&all[i]))
}

func (c *call) nodeText(n *nodeView) string {
	out := &sheet{label: 11}
	out.line("node", n.Node)
	out.text("config", cmp.Or(configText(n.Config), "nothing is set in etcd"))
	for _, p := range n.Problems {
		out.text("", p.String())
	}
	switch {
	case !n.Here:
		out.text("state", "gone: no vipd of that name runs, or it does not reach etcd")
		return out.b.String()
	case n.Status == nil:
		out.text("state", "starting: it has no status yet")
		return out.b.String()
	}
	s := n.Status
	out.text("vipd", fmt.Sprintf("%s, started %s", s.Version, c.ago(n.Live.Started)))
	out.text("zone", s.Zone)
	c.nodeModeText(out, s)
	c.nodeSyncText(out, n)
	out.text("serving", fmt.Sprintf("%s, %s, %s", count(s.Services, "service"), count(s.Frontends, "frontend"), count(s.Endpoints, "endpoint")))
	c.nodeProblemText(out, s)
	t := table.New(table.Column{Title: "SERVICE"}, table.Column{Title: "ADDRESS"}, table.Column{Title: "CONNECTIONS", Right: true})
	for _, d := range s.Drains {
		t.Row(string(d.Service), d.Address, strconv.FormatUint(d.Active, 10))
	}
	c.section(out, "drains", t)
	return out.b.String()
}

func (c *call) nodeModeText(out *sheet, s *etcd.NodeStatus) {
	switch {
	case s.Fallback:
		fmt.Fprintf(&out.b, "%-*s%s, a fallback: %s is wanted\n", out.label, "mode", c.paint(table.Line(s.Mode), table.Bad), table.Line(s.Wanted))
	case s.Wanted != s.Mode && s.Wanted != "":
		out.text("mode", s.Mode+", wanted: "+s.Wanted)
	default:
		out.text("mode", s.Mode)
	}
	if s.Why != "" {
		out.text("", "why: "+s.Why)
	}
}

func (c *call) nodeSyncText(out *sheet, n *nodeView) {
	s := n.Status
	text := fmt.Sprintf("revision %d is applied", s.Revision)
	if n.Behind != nil && *n.Behind > 0 {
		text += fmt.Sprintf(", %d is the newest", s.Revision+*n.Behind)
	}
	if !s.Ready {
		text += "; the first state is not complete yet"
	}
	out.text("sync", text)
	if s.Pending > 0 || s.Failing > 0 {
		out.text("", fmt.Sprintf("%s not as wanted yet, %d failing", count(s.Pending, "frontend"), s.Failing))
	}
	if !s.At.IsZero() {
		out.text("", "told "+c.ago(s.At)+"; nothing is new since")
	}
}

func (c *call) nodeProblemText(out *sheet, s *etcd.NodeStatus) {
	if s.ProblemCount == 0 {
		out.line("problems", "none")
		return
	}
	label := "problems"
	for _, p := range s.Problems {
		out.text(label, p)
		label = ""
	}
	if more := s.ProblemCount - len(s.Problems); more > 0 {
		out.text(label, fmt.Sprintf("and %d more: \"vipctl status\" on that host lists them", more))
	}
}
