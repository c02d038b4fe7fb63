package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"vipd/cmd/internal/table"
	"vipd/store/etcd"
)

func (c *call) describeNode(name string) error {
	if c.format == formTOML {
		return wrongUse("-o toml prints definitions, and nodes have none")
	}
	all, err := askEtcd(c, nodeViews)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(n nodeView) bool { return n.Node == name })
	if i < 0 {
		return nodes().absentIn(all, name)
	}
	return c.show(all[i], func() string { return c.nodeText(&all[i]) })
}

func (p *printer) nodeText(n *nodeView) string {
	out := &sheet{printer: p}
	out.line("node", n.Node)
	out.text("config", cmp.Or(configText(n.Config), "nothing is set in etcd"))
	for _, problem := range n.Problems {
		out.text("", problem.String())
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
	out.text("vipd", fmt.Sprintf("%s, started %s", s.Version, p.ago(n.Live.Started)))
	out.text("zone", s.Zone)
	out.mode(s.Mode, s.Wanted, s.Why, s.Fallback)
	out.nodeSync(n)
	out.text("serving", fmt.Sprintf("%s, %s, %s", count(s.Services, "service"), count(s.Frontends, "frontend"), count(s.Endpoints, "endpoint")))
	out.nodeProblems(s)
	t := table.New(table.Column{Title: "SERVICE"}, table.Column{Title: "ADDRESS"}, table.Column{Title: "CONNECTIONS", Right: true})
	for _, d := range s.Drains {
		t.Row(string(d.Service), d.Address, strconv.FormatUint(d.Active, 10))
	}
	if s.DrainsOmitted > 0 {
		t.Row("...", fmt.Sprintf("and %d more", s.DrainsOmitted), "")
	}
	out.section("drains", t)
	return out.b.String()
}

func (out *sheet) nodeSync(n *nodeView) {
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
		out.text("", fmt.Sprintf("%s pending, %d failing", count(s.Pending, "frontend"), s.Failing))
	}
	if !s.At.IsZero() {
		out.text("", "last report "+out.ago(s.At))
	}
}

func (out *sheet) nodeProblems(s *etcd.NodeStatus) {
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
