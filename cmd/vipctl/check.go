package main

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/wording"
	"vipd/store/tomlfile"
)

func checkVerb() *cli.Verb {
	return &cli.Verb{
		Name: "check", Args: "[FILE...]", Brief: "validate files before a daemon reads them",
		About: "Reads each FILE as the daemon would, and prints every problem, a line each, with file, line and field. FILE is " +
			"a daemon's config (with the services in it and where its [store].path leads), a services file, a folder of " +
			"those, or - (standard input); without FILE it is the daemon's config, /etc/vipd/vipd.toml or --config. [defaults] hold for the files that they come with.\n\n" +
			"It also reports settings that the mode can't honour: the mode of --mode or of the file. If that is auto, it is the mode of " +
			"the running vipd, or without a vipd any mode. What depends on the host is a warning, for the file may be another host's: files, programs and users that this " +
			"host lacks, and the interface of VIPs, VIPs that are an endpoint's address, and ports of this host's " +
			"own addresses on which a program listens. The exit code is 1 if any problem is more than a warning. No daemon is needed.",
		Example: "vipctl check /etc/vipd/vipd.toml --mode userspace",
		Values:  modeValues(),
		Flags:   []cli.Flag{modeFlag("what this `MODE` can't honour is a problem too: " + wording.List(config.ModeName("").Values(), "or"))},
		Formats: []string{cli.FormTable, cli.FormJSON},
		MaxArgs: cli.AnyArgs,
		Run:     runCheck,
	}
}

func runCheck(c *cli.Call) error {
	mode, err := mode(c)
	if err != nil {
		return err
	}
	all := []balancer.Problem{}
	var b strings.Builder
	files := c.Args
	if len(files) == 0 {
		files = []string{c.Flags.String("config")}
	}
	for _, file := range files {
		d, err := readChecked(c, file)
		if err != nil {
			return err
		}
		d.checkFor(cmp.Or(mode, d.runningMode(c)))
		all = append(all, d.problems...)
		b.WriteString(problemLines(c.Printer, d.problems))
		if len(d.problems) == 0 {
			fmt.Fprintf(&b, "%s: %s, no problems\n", d.place, wording.Count(d.services.Len(), "service"))
		}
	}
	return cmp.Or(c.Show(all, b.String), reported(all))
}

// readChecked is like readDefinitions, but also accepts standard input.
func readChecked(c *cli.Call, place string) (*localDefinitions, error) {
	if place != stdinName {
		return readDefinitions(place)
	}
	place, text, err := readInput(c, place)
	if err != nil {
		return nil, err
	}
	return definitionsOf(place, tomlfile.LoadText(place, text)), nil
}

// checkFor compiles the definitions for a mode, or for the configured mode if mode is "", and adds
// the problems found. It also adds requirements of health checks that this host does not meet.
func (d *localDefinitions) checkFor(mode config.ModeName) {
	mode = cmp.Or(mode, d.config.Mode)
	frontends := d.compile("", capabilities(mode))
	for i := range d.problems {
		if p := &d.problems[i]; p.Kind == balancer.Held {
			p.Text += " (a running vipd leaves it with the service that has it)" // the files don't name the holder
		}
	}
	d.checkOverlaps()
	d.checkHost(frontends)
	d.sortProblems()
}

// checkOverlaps adds conflicts of services that have another mistake. Such services are not
// compiled, so users would otherwise see the conflict only after they fix the mistake.
func (d *localDefinitions) checkOverlaps() {
	valid, seen := maps.Collect(d.services.All()), map[balancer.Name]bool{}
	documents := map[string]*tomlfile.Document{d.place: d.main}
	wrong, where := map[balancer.Name]*balancer.Service{}, map[balancer.Name]balancer.Locator{}
	for _, p := range d.problems {
		if p.Service == "" || p.Origin.File == "" || seen[p.Service] || valid[p.Service] != nil {
			continue
		}
		seen[p.Service] = true
		doc, known := documents[p.Origin.File]
		if !known {
			if text, err := tomlfile.ReadFile(p.Origin.File); err == nil {
				doc, _ = tomlfile.Parse(p.Origin.File, text)
			}
			documents[p.Origin.File] = doc
		}
		if doc != nil {
			where[p.Service] = doc.Under(decode.Join("services", string(p.Service)))
			wrong[p.Service] = claimsIn(doc, p.Service, where[p.Service](""))
		}
	}
	for _, c := range balancer.ClaimConflicts(valid, wrong) {
		problem := c.Problem()
		problem.Origin = where[c.Service.Name](c.Field)
		d.problems = append(d.problems, problem)
	}
}

// claimsIn reads the claims of a service, each address and port separately, so a wrong claim hides
// no other.
func claimsIn(doc *tomlfile.Document, name balancer.Name, at balancer.Origin) *balancer.Service {
	services, _ := doc.Tree()["services"].(map[string]any)
	fields, _ := services[string(name)].(map[string]any)
	claim := func(vip, port any) *balancer.Service {
		alone := map[string]any{"vips": []any{vip}, "ports": []any{port}}
		service, _ := balancer.DecodeService(name, alone, nil, nil, balancer.SeverityWarning)
		return service
	}
	claimed := &balancer.Service{Name: name, Origin: at}
	for _, vip := range elements(fields["vips"]) {
		if s := claim(vip, map[string]any{"port": int64(1)}); s != nil {
			claimed.VIPs = append(claimed.VIPs, s.VIPs...)
		}
	}
	for _, port := range elements(fields["ports"]) {
		p := balancer.Port{}
		if s := claim("192.0.2.1", port); s != nil {
			p = s.Ports[0]
		}
		claimed.Ports = append(claimed.Ports, p)
	}
	return claimed
}

// elements returns the elements of an array. The parser has its own type for arrays of tables.
func elements(array any) (all []any) {
	switch array := array.(type) {
	case []any:
		return array
	case []map[string]any:
		for _, table := range array {
			all = append(all, table)
		}
	}
	return all
}
