package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
)

func servicesTable(p *cli.Printer, services []api.Service) *table.Table {
	fleet := p.FleetWide
	t := table.New(
		table.Column{Title: "NAME"}, table.Column{Title: "VIPS"}, table.Column{Title: "PORTS"},
		table.Column{Title: "UP", Style: upStyle, Skip: fleet}, table.Column{Title: "ENDPOINTS", Skip: !fleet}, table.Column{Title: "PROBLEMS", Style: problemStyle},
		table.Column{Title: "SCHEDULER", Wide: true}, table.Column{Title: "CONNECTIONS", Wide: true, Right: true, Skip: fleet},
		table.Column{Title: "ORIGIN", Wide: true, Skip: fleet}, table.Column{Title: "REVISION", Wide: true, Right: true, Skip: !fleet},
	)
	for i := range services {
		s := &services[i]
		var ports []string
		var connections uint64
		for _, port := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s/%s", port.Port, port.Protocol))
			connections += port.Connections
		}
		up := api.UseOf(s.Endpoints).Text("/")
		if s.Refused {
			up = ""
		}
		scheduler, set := s.Definition["scheduler"]
		if !set {
			scheduler = balancer.WeightedRoundRobin
		}
		t.Row(string(s.Name), few(p, s.VIPs, 1), few(p, ports, 3), up, up, number(len(s.Problems)), fmt.Sprint(scheduler),
			strconv.FormatUint(connections, 10), s.Origin.Text(), strconv.FormatInt(s.Origin.Revision, 10))
	}
	return t
}

// few lists the first n elements, and counts the remaining elements. In the wide form, it lists all
// elements.
func few(p *cli.Printer, list []string, n int) string {
	if p.Format == cli.FormWide || len(list) <= n+1 && n > 1 || len(list) <= n {
		return strings.Join(list, ",")
	}
	return fmt.Sprintf("%s +%d", strings.Join(list[:n], ","), len(list)-n)
}

// upStyle returns the style for text that [api.Use] formats. The style is Bad only if no port has a
// usable endpoint.
func upStyle(text string) table.Style {
	none, full := true, true
	for part := range strings.SplitSeq(text, ", ") {
		active, all, _ := strings.Cut(part[strings.LastIndex(part, " ")+1:], "/")
		none, full = none && active == "0", full && active == all
	}
	switch {
	case none:
		return table.Bad
	case full:
		return table.Good
	}
	return table.Notice
}

// number formats n, or returns "" for 0.
func number[N int | int64 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

// badCount returns the style for a count that should be 0.
func badCount(text string) table.Style {
	if text == "0" {
		return table.Plain
	}
	return table.Notice
}

func problemStyle(text string) table.Style {
	if text == "-" {
		return table.Plain
	}
	return table.Bad
}

func endpointsTable(p *cli.Printer, endpoints []api.Endpoint) *table.Table {
	fleet := p.FleetWide
	// If an endpoint serves two ports of its service at one address, only the ports' names
	// distinguish the rows.
	seen := map[[2]string]bool{}
	distinct := !slices.ContainsFunc(endpoints, func(e api.Endpoint) bool {
		row := [2]string{string(e.Service), e.Address}
		again := seen[row]
		seen[row] = true
		return again
	})
	none := func(has func(*api.Endpoint) bool) bool {
		return !slices.ContainsFunc(endpoints, func(e api.Endpoint) bool { return has(&e) })
	}
	weight := weights(endpoints)
	// The wide table omits empty columns, because it must fit in 160 columns.
	t := table.New(
		table.Column{Title: "SERVICE"}, table.Column{Title: "PORT", Wide: distinct && !fleet}, table.Column{Title: "ADDRESS"},
		table.Column{Title: "WEIGHT", Right: true}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "HEALTH", Style: stateStyle, Skip: fleet}, table.Column{Title: "ACTIVE", Right: true, Skip: fleet},
		table.Column{Title: "UNANSWERED", Right: true, Skip: fleet || none(func(e *api.Endpoint) bool { return e.Unanswered > 0 }), Style: badCount},
		table.Column{Title: "NEXT", Wide: true, Skip: fleet}, table.Column{Title: "CONFIGURED", Wide: true, Right: true, Skip: none(func(e *api.Endpoint) bool { return e.Configured != e.Weight })},
		table.Column{Title: "CONNECTIONS", Wide: true, Right: true, Skip: fleet},
		table.Column{Title: "NAME", Wide: true, Skip: none(func(e *api.Endpoint) bool { return e.Name != "" })},
		table.Column{Title: "NODE", Wide: true, Skip: none(func(e *api.Endpoint) bool { return e.Node != "" })},
		table.Column{Title: "ZONE", Wide: true, Skip: none(func(e *api.Endpoint) bool { return e.Zone != "" })},
		table.Column{Title: "BACKUP", Wide: true, Skip: none(func(e *api.Endpoint) bool { return e.Backup })},
		table.Column{Title: "WHY", Wide: true},
	)
	for i := range endpoints {
		e := &endpoints[i]
		t.Row(string(e.Service), e.Port, e.Place(), weight[i], string(e.State), verdict(p, e), strconv.FormatUint(e.Active, 10), strconv.FormatUint(e.Unanswered, 10),
			nextCheck(p, e.Check), strconv.Itoa(e.Configured), strconv.FormatUint(e.Connections, 10),
			e.Name, e.Node, e.Zone, yesIf(e.Backup), why(p, e))
	}
	return t
}

func frontendsTable(_ *cli.Printer, frontends []api.Frontend) *table.Table {
	t := table.New(
		table.Column{Title: "FRONTEND"}, table.Column{Title: "SERVICE"}, table.Column{Title: "PORT"},
		table.Column{Title: "SCHEDULER"}, table.Column{Title: "UP", Style: upStyle}, table.Column{Title: "STATE", Style: stateStyle},
		table.Column{Title: "NODEPORT", Wide: true}, table.Column{Title: "BACKENDS", Wide: true}, table.Column{Title: "ERROR", Wide: true},
	)
	for i := range frontends {
		f := &frontends[i]
		backends := lists.Mapped(f.Backends, func(b api.Backend) string { return fmt.Sprintf("%s(%s)", b.Address, backendNote(&b)) })
		t.Row(f.Key.String(), string(f.Service), f.Port, string(f.Scheduler), upBackends(f.Backends),
			f.State, yesIf(f.NodePort), strings.Join(backends, ","), f.Error)
	}
	return t
}

func upBackends(backends []api.Backend) string {
	active, all := 0, 0
	for _, b := range backends {
		if b.State == balancer.Active {
			active++
		}
		if b.State != balancer.Removed {
			all++
		}
	}
	return fmt.Sprintf("%d/%d", active, all)
}

// backendNote returns a backend's weight, or the reason why it gets no new connections.
func backendNote(b *api.Backend) string {
	if b.State == balancer.Active {
		return strconv.Itoa(b.Weight)
	}
	return string(b.State)
}

func yesIf(b bool) string {
	if b {
		return "yes"
	}
	return ""
}
