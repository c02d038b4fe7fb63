package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/internal/wording"
	"vipd/store/etcd"
)

// refuse prints the problems, and returns an error if one of them keeps everything from being written.
func (e *edit) refuse() error {
	wrong := 0
	for _, p := range e.problems {
		if e.note("%s", problemLine(&p)); p.Severity != balancer.SeverityWarning {
			wrong++
		}
	}
	if wrong == 0 {
		return nil
	}
	e.note("%s: nothing was written", wording.Count(wrong, "problem"))
	return errReported
}

// write makes the changes, one transaction each: first what comes, then what goes, so that a key that moves from
// one service to another always has an owner. A change that was overtaken by another edit is reported, and the others go on.
// Where etcd fails, nothing more is written, and the report leaves out what was not.
func (e *edit) write() error {
	doing := map[outcome]string{removedService: "removal"}
	slices.SortStableFunc(e.intents, func(a, b *intent) int {
		return cmp.Or(cmp.Compare(doing[a.What], doing[b.What]), a.Name.Compare(b.Name))
	})
	missed := 0
	for n, i := range e.intents {
		if i.What == unchangedService {
			continue
		}
		err := e.writeOne(i, e.intents[n:])
		var conflict *etcd.ConflictError
		var taken *takenError
		switch {
		case err == nil:
			continue
		case errors.As(err, &taken):
			i.Error = taken.Error()
			missed++
			continue
		case !errors.As(err, &conflict):
			e.intents, e.vips = e.intents[:n], nil
			return fmt.Errorf("%s of %s: %w; the changes listed above are done; run it again when the cause is fixed: it leaves them alone", cmp.Or(doing[i.What], "writing"), i.Name, err)
		case e.agrees(i, conflict):
			continue
		}
		i.Error = conflict.Error()
		missed++
	}
	err := e.writeVIPs()
	if missed > 0 {
		return errors.Join(fmt.Errorf("%s not written, because someone else was faster", wording.Count(missed, "change")), err)
	}
	return err
}

// agrees reports whether the edit that was faster wanted the same.
func (e *edit) agrees(i *intent, conflict *etcd.ConflictError) bool {
	if i.fields == nil {
		return conflict.Revision == 0
	}
	s, err := e.writer.Service(e, i.Name)
	if err != nil || s == nil || !s.Says(i.fields) {
		return false
	}
	i.What, i.Revision, i.Fields = unchangedService, s.Revision, nil
	return true
}

// mostLooks is how often all services are looked at again for one change, because others claim something meanwhile.
const mostLooks = 1000

// writeOne makes one change, which is the first of those that are left. Where others may have come to claim something
// since the services were read, they are read again: what they don't claim is still free.
func (e *edit) writeOne(i *intent, left []*intent) error {
	for range mostLooks {
		r, err := e.writer.Apply(e, e.change(i))
		var stale *etcd.StaleError
		if !errors.As(err, &stale) {
			if err == nil {
				i.Revision = r.Revision
			}
			return err
		}
		if err := e.read(); err != nil {
			return err
		}
		if p := e.taken(i, left); len(p) > 0 {
			return &takenError{p}
		}
	}
	return errors.New("others claim addresses or ports all the time")
}

// takenError says that a change claims what another service has come to claim since it was checked.
type takenError struct{ problems []balancer.Problem }

// Error has the problems in one line.
func (e *takenError) Error() string {
	return strings.Join(mapped(e.problems, balancer.Problem.String), "; ")
}

// taken returns what another service claims of what a change would bring about, of those that are left.
func (e *edit) taken(i *intent, left []*intent) []balancer.Problem {
	problems := e.takenVIPs([]*intent{i})
	for _, c := range contests(e.services(), left) {
		if c.isNew && c.intent == i {
			problems = append(problems, c.problem())
		}
	}
	return problems
}

// change is what is asked of etcd. Fields that this version does not know have been judged before.
func (e *edit) change(i *intent) etcd.Change {
	base := int64(0)
	if i.stored != nil {
		base = i.stored.Revision
	}
	return etcd.Change{Name: i.Name, Fields: i.fields, Base: base, By: e.author(), Trace: tracing.Parent(e), Rollback: e.rollback, Checked: e.revision, AllowUnknown: true}
}

// author is who makes a change, for the history: the operator, and the host that the change came from.
func (c *call) author() string {
	name := cmp.Or(c.operator(), "unknown")
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// look reads once more after writing which addresses pools have given to the services, if any asks for one.
func (e *edit) look() error {
	given := slices.DeleteFunc(slices.Clone(e.intents), func(i *intent) bool {
		return i.What == unchangedService || i.Error != "" || i.service == nil || len(i.service.Pools) == 0
	})
	if len(given) == 0 {
		return nil
	}
	if err := e.read(); err != nil {
		return err
	}
	for _, i := range given {
		i.Addresses = withHeld(i.service, e.held).Allocated
	}
	return nil
}

// editResult is an edit in JSON.
type editResult struct {
	// Revision is that which the hosts have to reach for all of it to be in effect.
	Revision int64     `json:"revision"`
	Services []*intent `json:"services"`
	// VIPs are the settings of addresses.
	VIPs   []*intent `json:"vips,omitempty"`
	DryRun bool      `json:"dry_run,omitempty"`
}

// report prints what became of each service, or would.
func (e *edit) report(dry bool) error {
	revision, written := int64(0), int64(0)
	for _, i := range e.all() {
		revision = max(revision, i.Revision)
	}
	if e.format == formJSON {
		return e.printJSON(editResult{Revision: revision, Services: list(e.intents), VIPs: e.vips, DryRun: dry})
	}
	var b strings.Builder
	for _, i := range e.all() {
		text := string(i.What)
		switch {
		case i.Error != "":
			e.note("%s", i.Error)
			continue
		case dry && i.What != unchangedService:
			text = "would be " + text
		case i.What != unchangedService:
			written = revision
		}
		text = i.subject() + ": " + text
		for _, a := range i.Addresses {
			text += ", " + a.String()
		}
		fmt.Fprintln(&b, e.paint(text, outcomeStyle(i.What)))
		if dry {
			b.WriteString(e.fieldsText(i.Fields))
		}
	}
	return e.print(b.String() + waitText(written))
}

func outcomeStyle(o outcome) table.Style {
	switch o {
	case createdService:
		return table.Good
	case updatedService:
		return table.Notice
	case removedService:
		return table.Bad
	}
	return table.Plain
}

// finish writes the changes unless it is a rehearsal, and reports.
func (e *edit) finish(dry bool) error {
	if err := e.refuse(); err != nil {
		return err
	}
	if dry {
		for _, i := range e.intents {
			// What asks for addresses of other pools than before may not keep those it holds; which ones it is given is known when it is applied.
			if i.What == updatedService && i.service != nil && (i.stored.Service == nil || !slices.Equal(i.service.Pools, i.stored.Service.Pools)) {
				i.Addresses = nil
			}
		}
		return e.report(true)
	}
	err := e.write()
	lookErr := e.look()
	return cmp.Or(err, e.report(false), lookErr)
}
