package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/tomltext"
	"vipd/dataplane/probe"
	"vipd/store/etcd/definitions"
)

func diffVerb() *cli.Verb {
	return &cli.Verb{
		Name: "diff", Brief: "compare wanted services with running services, or with etcd",
		About: `Without -f, lists services of the daemon that do not run as configured, with
the reasons. The daemon compares its services with the kernel, repairs what
other programs have changed, and shows what it can't repair.

With -f FILE, if services come from files, it shows what would change if the
daemon read FILE now. FILE is a daemon's config, a services file, or a folder
of services files. A running service that is not in FILE counts as removed only
if it was read from FILE, from a file in that folder, or from the
[store].path of FILE. If FILE is a daemon's config, its mode and its settings
are also compared, and those that need a restart are marked. Secrets of health
checks are compared only for users who may change vipd. A services file or
folder is read without the [defaults] of a config.

With -f FILE and services in etcd (--etcd or the config), it shows what
"vipctl apply -f FILE" would change. -f may be repeated. With --prune, it also
shows services that exist only in etcd. Without --etcd and VIPCTL_ETCD, the
daemon's own config is still compared with the daemon.

The exit code is 3 if there are differences, 0 if there are none, and 1 if the
comparison is incomplete.`,
		Example: "vipctl diff -f /etc/vipd/vipd.toml",
		Flags: []cli.Flag{
			recursiveFlag(),
			fileFlag("compare this `FILE` or folder; - is standard input"),
			&cli.BoolFlag{Name: "prune", Usage: "also report services that exist only in etcd"},
		},
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true,
		Run: runDiff,
	}
}

func runDiff(c *cli.Call) error {
	files := c.Flags.StringSlice("file")
	switch {
	case len(files) > 0 && comparesEtcd(c, files):
		return diffFleet(c, files)
	case len(files) > 1 || len(files) == 1 && files[0] == stdinName:
		return cli.WrongUse("the daemon's services can be compared with a single file or folder; several files and standard input can be compared only with etcd (--etcd)")
	case c.Flags.Bool("prune"):
		return cli.WrongUse("--prune needs -f FILE and the etcd store (--etcd)")
	case len(files) == 1:
		return diffFile(c, files[0])
	}
	differences, err := cli.AskDaemon(c, (*api.Client).Diff)
	if err != nil {
		return err
	}
	if len(differences) == 0 {
		if err := unread(c); err != nil {
			return err
		}
	}
	t := table.New(table.Column{Title: "FRONTEND"}, table.Column{Title: "SERVICE"},
		table.Column{Title: "WHAT", Style: stateStyle}, table.Column{Title: "WHY"})
	for _, d := range differences {
		key := "-"
		if d.Key != (balancer.Key{}) {
			key = d.Key.String()
		}
		t.Row(key, string(d.Service), d.What, cli.OneLine(d.Why))
	}
	err = c.PrintRows(lists.NonNil(differences), t, "no differences: all services run as defined")
	switch {
	case err == nil && len(differences) > 0:
		return cli.ErrDifferences
	case len(differences) == 0 && c.Format != cli.FormJSON:
		// A definition that can't be served here does not appear as a difference.
		if s, _ := cli.AskDaemon(c, (*api.Client).Status); grave(s.Problems) {
			c.Say("some services can't be served as they are defined: see the problems in \"vipctl status\"")
		}
	}
	return err
}

// serviceDiff holds the differences in one service, VIP or setting.
type serviceDiff struct {
	Service balancer.Name `json:"service,omitempty"`
	// VIP is the address whose settings differ, if the difference is not in a service.
	VIP netip.Addr `json:"vip,omitzero"`
	// Setting is the daemon's setting that differs, if the difference is neither in a service nor a
	// VIP. Restart reports whether a change takes effect only after a restart of vipd.
	Setting string `json:"setting,omitempty"`
	Restart bool   `json:"restart,omitempty"`
	// What is "added", "removed", or "changed".
	What string `json:"what"`
	// Fields lists the fields that differ.
	Fields []fieldDiff `json:"fields,omitempty"`
}

// fieldDiff is a field that differs. A nil value means that the field is not set.
type fieldDiff struct {
	Field string `json:"field"`
	Runs  any    `json:"runs"`
	Wants any    `json:"wants"`
}

func diffFile(c *cli.Call, file string) error {
	d, err := readDefinitions(file)
	if err != nil {
		return err
	}
	bad, err := d.unusable()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		c.Note("not compared: %s", bad[name])
	}
	running, err := cli.AskDaemon(c, accepted)
	if err != nil {
		return err
	}
	differences, err := compare(running, d, bad)
	if err != nil {
		return err
	}
	settings, err := d.compareSettings(c)
	if err != nil {
		return err
	}
	return showDifferences(c, slices.Concat(settings, differences), len(bad) > 0, "the running services and "+file)
}

// compareSettings lists the settings in which the files differ from the running vipd. These are the
// mode, settings that differ from the daemon's own configuration, and settings that the daemon read
// from this file but can't change while it is running.
func (d *localDefinitions) compareSettings(c *cli.Call) (all []serviceDiff, err error) {
	if d.main == nil || !isConfig(d.main) {
		return nil, nil
	}
	status, err := cli.AskDaemon(c, (*api.Client).Status)
	if err != nil {
		return nil, err
	}
	if runs, wants := status.Mode.Wanted, string(d.config.Mode); runs != wants {
		all = append(all, serviceDiff{Setting: "mode", What: "changed", Fields: []fieldDiff{{"mode", runs, wants}}})
	}
	all = append(all, d.compareWithOwn(c.Flags.String("config"))...)
	for _, p := range status.Problems {
		if p.Kind == balancer.NeedsRestart && cli.SamePlace(p.Origin.File, d.place) {
			all = append(all, serviceDiff{Setting: p.Field, What: "changed", Restart: true})
		}
	}
	return all, nil
}

// compareWithOwn lists the settings that differ from the daemon's own configuration. It omits the
// mode and the defaults, because their effects are compared elsewhere. If the daemon's
// configuration can't be read, it lists nothing.
func (d *localDefinitions) compareWithOwn(file string) (all []serviceDiff) {
	own, err := readDefinitions(file)
	if err != nil || own.main == nil || cli.SamePlace(file, d.place) {
		return nil
	}
	for _, name := range config.Sections() {
		if name == "mode" || name == "defaults" || !own.config.Differs(name, &d.config) {
			continue
		}
		diff := serviceDiff{Setting: name, What: "changed", Restart: own.config.NeedsRestart(name, &d.config)}
		runs, isTable := own.main.Tree()[name].(map[string]any)
		wants, alsoTable := d.main.Tree()[name].(map[string]any)
		if !isTable && !alsoTable {
			runs, wants = map[string]any{name: own.main.Tree()[name]}, map[string]any{name: d.main.Tree()[name]}
		}
		all = append(all, diff.withFields(runs, wants))
	}
	return all
}

// withFields returns a copy of s that also lists the fields that differ between two tables.
func (s serviceDiff) withFields(runs, wants map[string]any) serviceDiff {
	names := slices.Concat(slices.Collect(maps.Keys(runs)), slices.Collect(maps.Keys(wants)))
	slices.Sort(names)
	for _, field := range slices.Compact(names) {
		if a, b := runs[field], wants[field]; !reflect.DeepEqual(a, b) {
			s.Fields = append(s.Fields, fieldDiff{field, a, b})
		}
	}
	return s
}

// comparesEtcd reports whether files are compared with etcd instead of the running daemon. The
// daemon's own configuration is compared with the daemon, unless --etcd or VIPCTL_ETCD is set.
func comparesEtcd(c *cli.Call, files []string) bool {
	own := func(file string) bool { return file != stdinName && cli.SamePlace(file, c.Flags.String("config")) }
	return c.StoresInEtcd() && (c.NamesEtcd() || !slices.ContainsFunc(files, own))
}

// showDifferences prints the differences, and returns the verb's error. incomplete reports whether
// some services could not be compared.
func showDifferences(c *cli.Call, differences []serviceDiff, incomplete bool, between string) (err error) {
	if len(differences) == 0 && c.Format != cli.FormJSON {
		c.Say("no differences between %s", between)
	}
	err = c.Show(differences, func() string { return differencesText(c.Printer, differences) })
	switch {
	case err != nil:
		return err
	case incomplete:
		return cli.ErrReported
	case len(differences) > 0:
		return cli.ErrDifferences
	}
	return nil
}

// unusable returns a problem for each service with an error. The daemon would keep such a service
// unchanged. If an error belongs to no service, unusable returns an error, because the list of
// services might then be wrong.
func (d *localDefinitions) unusable() (map[balancer.Name]balancer.Problem, error) {
	bad := map[balancer.Name]balancer.Problem{}
	for _, p := range d.problems {
		switch {
		case p.Severity != balancer.SeverityError:
		case p.Service == "":
			return nil, fmt.Errorf("%s can't be compared: %s; \"vipctl check %s\" lists all problems", d.place, p, d.place)
		default:
			bad[p.Service] = p
		}
	}
	return bad, nil
}

// compare lists the changes that the daemon would make if it read d, sorted by service. It omits
// the services in bad.
func compare(running []api.Service, d *localDefinitions, bad map[balancer.Name]balancer.Problem) ([]serviceDiff, error) {
	differences := []serviceDiff{}
	runs := map[balancer.Name]bool{}
	for name := range bad {
		runs[name] = true
	}
	for _, r := range running {
		_, skipped := bad[r.Name]
		runs[r.Name] = true
		s, ok := d.services.Get(r.Name)
		switch {
		case skipped:
		case !ok && d.covers(r.Origin.File):
			differences = append(differences, serviceDiff{Service: r.Name, What: "removed"})
		case ok:
			wants := balancer.EncodeService(s)
			if reflect.DeepEqual(r.Definition, probe.WithoutSecrets(r.Definition)) { // the daemon hides secrets from users who may only read
				wants = probe.WithoutSecrets(wants)
			}
			fields, err := compareFields(r.Definition, wants)
			if err != nil {
				return nil, err
			}
			if len(fields) > 0 {
				differences = append(differences, serviceDiff{Service: r.Name, What: "changed", Fields: fields})
			}
		}
	}
	for name := range d.services.Keys() {
		if !runs[name] {
			differences = append(differences, serviceDiff{Service: name, What: "added"})
		}
	}
	slices.SortFunc(differences, func(a, b serviceDiff) int { return a.Service.Compare(b.Service) })
	return differences, nil
}

// compareFields lists the fields that differ between two definitions. It compares their JSON forms,
// so values of different Go types can be equal.
func compareFields(runs, wants map[string]any) (fields []fieldDiff, err error) {
	all := map[string]any{}
	for _, definition := range []*map[string]any{&runs, &wants} {
		text, err := json.Marshal(*definition)
		if *definition = nil; err == nil {
			err = json.Unmarshal(text, definition)
		}
		if err != nil {
			return nil, fmt.Errorf("comparing definitions: %w", err)
		}
		maps.Copy(all, *definition)
	}
	for _, field := range tomltext.Fields(all) {
		if a, b := runs[field], wants[field]; !reflect.DeepEqual(a, b) {
			fields = append(fields, fieldDiff{field, a, b})
		}
	}
	return fields, nil
}

// unread returns an error if the daemon has not been able to read its store since it started. In
// that case, there is nothing to compare with.
func unread(c *cli.Call) error {
	s, err := cli.AskDaemon(c, (*api.Client).Status)
	if err != nil || s.Store.EverRead || s.Store.Error == "" {
		return err
	}
	return fmt.Errorf("the wanted state is not known, because the store has not been readable since vipd started: %s", s.Store.Error)
}

func differencesText(p *cli.Printer, differences []serviceDiff) string {
	var b strings.Builder
	for _, d := range differences {
		mark, style := "~", table.Notice
		switch d.What {
		case "added":
			mark, style = "+", table.Good
		case "removed":
			mark, style = "-", table.Bad
		}
		subject := "service " + string(d.Service)
		switch {
		case d.VIP.IsValid():
			subject = "vip " + d.VIP.String()
		case d.Setting != "" && d.Restart:
			subject = "setting " + d.Setting + ": needs a restart of vipd"
			if d.Setting == "ownership" { // vipd owner also reads this section
				subject += " and vipd-owner"
			}
		case d.Setting != "":
			subject = "setting " + d.Setting
		}
		fmt.Fprintln(&b, p.Paint(mark+" "+subject, style))
		b.WriteString(fieldsText(p, d.Fields))
	}
	return b.String()
}

// fieldsText formats each field with its current value and its new value.
func fieldsText(p *cli.Printer, fields []fieldDiff) string {
	var b strings.Builder
	for _, f := range fields {
		if f.Runs != nil {
			fmt.Fprintln(&b, p.Paint("  - "+f.Field+" = "+tomltext.Value(f.Runs, ""), table.Bad))
		}
		if f.Wants != nil {
			fmt.Fprintln(&b, p.Paint("  + "+f.Field+" = "+tomltext.Value(f.Wants, ""), table.Good))
		}
	}
	return b.String()
}

// diffFleet lists the changes that applying these files would make in etcd.
func diffFleet(c *cli.Call, places []string) error {
	g, err := readGiven(c, places, c.Flags.Bool("recursive"))
	if err != nil {
		return err
	}
	e, prune := newEdit(c, g.changes(), g.problems), c.Flags.Bool("prune")
	bad := map[balancer.Name]bool{}
	for _, p := range e.plan.Problems {
		if !isError(p) {
			continue
		}
		if p.Service == "" {
			return fmt.Errorf("%s can't be compared: %s", strings.Join(places, ", "), p)
		}
		c.Note("not compared: %s", p)
		bad[p.Service] = true
	}
	e.plan.Steps = slices.DeleteFunc(e.plan.Steps, func(s *definitions.Step) bool { return bad[s.Name] })
	if err := e.read(); err != nil {
		return err
	}
	if err := e.wantVIPs(g, prune); err != nil {
		return err
	}
	if prune {
		if err := g.sufficient(places, true); err != nil {
			return err
		}
		e.removeOthers(g)
	}
	differences, err := e.differences()
	if err != nil {
		return err
	}
	return showDifferences(c, differences, len(bad) > 0, "etcd and "+strings.Join(places, ", "))
}

// differences lists the changes that the edit would make.
func (e *edit) differences() ([]serviceDiff, error) {
	all := []serviceDiff{}
	what := map[definitions.Outcome]string{definitions.Created: "added", definitions.Updated: "changed", definitions.Removed: "removed"}
	services, err := e.services(true)
	slices.SortFunc(services, func(a, b *edited) int { return a.Name.Compare(b.Name) })
	for _, d := range slices.Concat(services, e.vips) {
		if d.What != definitions.Unchanged {
			all = append(all, serviceDiff{Service: d.Name, VIP: d.VIP, What: what[d.What], Fields: d.Fields})
		}
	}
	return all, err
}
