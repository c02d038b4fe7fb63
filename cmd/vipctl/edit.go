package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/reserved"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
)

// edit is a set of changes to services and VIP settings in etcd.
type edit struct {
	*cli.Call
	plan *definitions.Plan
	vips []*edited
}

// edited is the result of a change to one service, or to one VIP's settings.
type edited struct {
	Name balancer.Name       `json:"service,omitempty"`
	VIP  netip.Addr          `json:"vip,omitzero"`
	What definitions.Outcome `json:"what"`
	// Revision is the revision of the write, or of an unchanged definition. It is 0 before the
	// write.
	Revision int64 `json:"revision,omitempty"`
	// Addresses lists the addresses that pools have assigned to the service.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Fields lists the fields that differ.
	Fields []fieldDiff `json:"fields,omitempty"`
	// Error is the reason why the change was not written.
	Error string `json:"error,omitempty"`

	// settings holds the VIP's settings. If nil, the settings are removed.
	settings map[string]any
}

func (e *edited) subject() string {
	if e.VIP.IsValid() {
		return e.VIP.String()
	}
	return string(e.Name)
}

// newEdit plans changes. problems lists the problems that were found while the files were read.
// newEdit adds the problems with the changes, and sorts all problems by file and line.
func newEdit(c *cli.Call, changes []definitions.Change, problems []balancer.Problem) *edit {
	by, trace := author(c), tracing.Parent(c)
	for i := range changes {
		changes[i].By, changes[i].Trace = by, trace
	}
	e := &edit{Call: c, plan: definitions.NewPlan(changes)}
	e.plan.Problems = slices.Concat(problems, e.plan.Problems)
	slices.SortStableFunc(e.plan.Problems, func(a, b balancer.Problem) int {
		return cmp.Or(cmp.Compare(a.Origin.File, b.Origin.File), cmp.Compare(a.Origin.Line, b.Origin.Line))
	})
	return e
}

// read compares the changes with etcd, and determines what each change would do.
func (e *edit) read() error {
	w, err := e.Etcd()
	if err == nil {
		err = e.plan.Read(e, w.Writer)
	}
	return err
}

// removeOthers adds a removal for each service in etcd that no file defines.
func (e *edit) removeOthers(g *given) {
	for _, name := range slices.Sorted(maps.Keys(e.plan.Stored())) {
		if g.services[name] == nil {
			e.plan.Remove(definitions.Change{Name: name, By: author(e.Call), Trace: tracing.Parent(e)})
		}
	}
}

// judge adds problems that depend on etcd's content and on the nodes' addresses.
func (e *edit) judge() (err error) {
	e.plan.Nodes, err = e.Writer.Published(e)
	if err != nil && !client.Forbidden(err) {
		return fmt.Errorf("reading the nodes' addresses: %w", err)
	}
	e.plan.Reserved = reserved.New(reserved.Options{Endpoints: e.Members}).All()
	return e.plan.Judge(e)
}

// refuse prints the problems, and returns an error if one of them prevents the write.
func (e *edit) refuse() error {
	wrong := 0
	for _, p := range e.plan.Problems {
		if e.Note("%s", problemLine(&p)); p.Severity != balancer.SeverityWarning {
			wrong++
		}
	}
	if wrong == 0 {
		return nil
	}
	e.Note("%s: nothing was written", wording.Count(wrong, "problem"))
	return cli.ErrReported
}

// finish writes the changes, unless dry is true, and reports the result.
func (e *edit) finish(dry bool) error {
	if err := e.refuse(); err != nil {
		return err
	}
	if dry {
		return e.report(true)
	}
	err := e.write()
	return cmp.Or(err, e.report(false))
}

// write makes the changes. It writes VIP settings after the services.
func (e *edit) write() error {
	if err := e.plan.Write(e); err != nil {
		e.vips = nil
		return fmt.Errorf("%w; the changes listed above are done. Fix the cause and run the command again: it skips these changes", err)
	}
	err := e.writeVIPs()
	missed := 0
	for _, s := range e.plan.Steps {
		if s.Err != nil {
			missed++
		}
	}
	if missed > 0 {
		return errors.Join(fmt.Errorf("%s not written, because someone else changed it at the same time", wording.Count(missed, "change")), err)
	}
	return err
}

// author returns the user who makes a change, as USER@HOST for the history.
func author(c *cli.Call) string {
	name := cmp.Or(operator(c), "unknown")
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// editResult is an edit's result in JSON.
type editResult struct {
	// Revision is the revision at which all changes are in effect.
	Revision int64     `json:"revision"`
	Services []*edited `json:"services"`
	// VIPs lists the results for VIP settings.
	VIPs   []*edited `json:"vips,omitempty"`
	DryRun bool      `json:"dry_run,omitempty"`
}

// services returns the results for services. If dry is true, the results are predictions.
func (e *edit) services(dry bool) (all []*edited, err error) {
	for _, s := range e.plan.Steps {
		d := &edited{Name: s.Name, What: s.Outcome, Revision: s.Revision}
		if s.Err != nil {
			d.Error = s.Err.Error()
		}
		// If the service's pools change, it may lose its addresses. A dry run can't predict that.
		kept := s.Stored == nil || s.Stored.Service != nil && s.Service != nil && slices.Equal(s.Service.Pools, s.Stored.Service.Pools)
		if s.Service != nil && (!dry || s.Outcome != definitions.Updated || kept) {
			d.Addresses = s.Service.Allocated
		}
		if s.Outcome == definitions.Updated && !s.Stored.Matches(s.Fields) {
			if d.Fields, err = changedFields(s.Stored, s.Fields); err != nil {
				return nil, err
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// report prints the result for each service. If dry is true, the results are predictions.
func (e *edit) report(dry bool) error {
	services, err := e.services(dry)
	if err != nil {
		return err
	}
	revision, written := int64(0), int64(0)
	all := slices.Concat(services, e.vips)
	for _, d := range all {
		revision = max(revision, d.Revision)
	}
	if e.Format == cli.FormJSON {
		return e.PrintJSON(editResult{Revision: revision, Services: lists.NonNil(services), VIPs: e.vips, DryRun: dry})
	}
	var b strings.Builder
	for _, d := range all {
		text := string(d.What)
		switch {
		case d.Error != "":
			e.Note("%s", d.Error)
			continue
		case dry && d.What != definitions.Unchanged:
			text = "would be " + text
		case d.What != definitions.Unchanged:
			written = revision
		}
		text = d.subject() + ": " + text
		for _, a := range d.Addresses {
			text += ", " + a.String()
		}
		fmt.Fprintln(&b, e.Paint(text, outcomeStyle(d.What)))
		if dry {
			b.WriteString(fieldsText(e.Call.Printer, d.Fields))
		}
	}
	return e.Print(b.String() + waitText(written))
}

func outcomeStyle(o definitions.Outcome) table.Style {
	switch o {
	case definitions.Created:
		return table.Good
	case definitions.Updated:
		return table.Notice
	case definitions.Removed:
		return table.Bad
	}
	return table.Plain
}

// changedFields lists the fields whose changes affect the service. If no single change has an
// effect, it lists all fields whose text differs.
func changedFields(s *definitions.Stored, fields map[string]any) ([]fieldDiff, error) {
	if s.Service == nil {
		return nil, nil // the stored definition can't be read
	}
	all, err := compareFields(s.Fields, fields)
	if err != nil {
		return nil, err
	}
	shown := slices.DeleteFunc(slices.Clone(all), func(d fieldDiff) bool {
		swapped := maps.Clone(s.Fields)
		if value, found := fields[d.Field]; found {
			swapped[d.Field] = value
		} else {
			delete(swapped, d.Field)
		}
		return s.Matches(swapped)
	})
	if len(shown) == 0 {
		return all, nil
	}
	return shown, nil
}
