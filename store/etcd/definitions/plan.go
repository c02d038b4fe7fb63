package definitions

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Outcome is a change's effect on a service.
type Outcome string

// These are the outcomes of a change.
const (
	Created   Outcome = "created"
	Updated   Outcome = "updated"
	Unchanged Outcome = "unchanged"
	Removed   Outcome = "removed"
)

// Plan is a set of changes that are checked together and written one by one. [NewPlan] finds
// mistakes in each change, [Plan.Read] compares the changes with etcd, [Plan.Judge] finds
// conflicts, and [Plan.Write] writes the changes.
type Plan struct {
	// Steps lists the changes. Read sorts them in the order of writing. Removals are last, so a
	// claim that moves between services is always held.
	Steps []*Step
	// Problems lists the mistakes in the changes. A plan with an error must not be written.
	Problems []balancer.Problem
	// AllowUnknown permits fields that this version does not know. Otherwise Judge reports them as
	// errors, unless etcd already has them.
	AllowUnknown bool
	// Reserved and Nodes are the known ports and addresses that services from etcd must not use.
	Reserved []balancer.Reserved
	Nodes    snap.Map[balancer.NodeName, *balancer.Node]

	w *Writer
	// stored holds the services from the last read, and revision is that read's revision. given
	// maps each service to the addresses that it holds, sorted.
	stored   map[balancer.Name]*Stored
	given    map[balancer.Name][]netip.Addr
	revision int64
}

// Step is a change in a Plan, with its outcome.
type Step struct {
	Change
	Outcome Outcome
	// Stored is the service before the change, or nil if it does not exist.
	Stored *Stored
	// Service is the service after the change, with the addresses that it already holds. It is nil
	// if the service is removed or has errors.
	Service *balancer.Service
	// Revision is the revision at which the change was written, or 0 before that. If no write is
	// necessary, it is the definition's revision.
	Revision int64
	// Err is the reason why this change was not written although other changes were.
	Err error
}

// NewPlan decodes changes. Fields that this version does not know are warnings until Judge decides
// about them.
func NewPlan(changes []Change) *Plan {
	p := &Plan{}
	for _, c := range changes {
		s := &Step{Change: c}
		if c.Fields != nil {
			var problems []balancer.Problem
			s.Service, problems = balancer.DecodeService(c.Name, c.Fields, nil, c.Where, balancer.SeverityWarning)
			p.Problems = append(p.Problems, problems...)
		}
		p.Steps = append(p.Steps, s)
	}
	return p
}

func (p *Plan) Read(ctx context.Context, w *Writer) error {
	p.w = w
	err := p.read(ctx)
	for _, s := range p.Steps {
		if s.Stored = p.stored[s.Name]; s.Stored != nil {
			s.Base = s.Stored.Revision
		}
		s.Service = p.withGiven(s.Service)
		switch unchanged := s.Stored != nil && s.Fields != nil && s.Stored.Matches(s.Fields); {
		case s.Fields == nil:
			s.Outcome = Removed
		case s.Stored == nil:
			s.Outcome = Created
		case unchanged && (s.Service == nil || len(s.Service.Allocated) >= len(s.Service.Pools)):
			s.Outcome, s.Revision = Unchanged, s.Stored.Revision
		default:
			s.Outcome = Updated // even an equal definition may need other addresses
		}
	}
	slices.SortStableFunc(p.Steps, func(a, b *Step) int {
		return cmp.Or(strings.Compare(a.removal(), b.removal()), a.Name.Compare(b.Name))
	})
	return err
}

// removal returns the outcome of a step that removes a service, or "" for other steps.
func (s *Step) removal() string {
	if s.Fields == nil {
		return string(Removed)
	}
	return ""
}

// place returns a field's origin, which is empty if the service is not in a file.
func (s *Step) place(field string) balancer.Origin {
	if s.Where == nil {
		return balancer.Origin{}
	}
	return s.Where(field)
}

// changes reports whether the step adds or changes a service without errors.
func (s *Step) changes() bool { return s.Outcome != Unchanged && s.Fields != nil && s.Service != nil }

// read reads all services. If all steps are removals, it reads only the services that they remove.
func (p *Plan) read(ctx context.Context) error {
	p.stored, p.given = map[balancer.Name]*Stored{}, map[balancer.Name][]netip.Addr{}
	if len(p.Steps) > 0 && !slices.ContainsFunc(p.Steps, func(s *Step) bool { return s.Fields != nil }) {
		for _, s := range p.Steps {
			found, err := p.w.Service(ctx, s.Name)
			if err != nil {
				return err
			}
			if found != nil {
				p.stored[s.Name] = found
			}
		}
		return nil
	}
	d, err := p.w.Definitions(ctx)
	if err != nil {
		return fmt.Errorf("reading the services: %w", err)
	}
	for _, s := range d.Services {
		p.stored[s.Name] = s
	}
	for _, a := range slices.SortedFunc(maps.Keys(d.Held), netip.Addr.Compare) {
		p.given[d.Held[a]] = append(p.given[d.Held[a]], a)
	}
	p.revision = d.Revision
	return nil
}

// Stored returns the services that Read has found.
func (p *Plan) Stored() map[balancer.Name]*Stored { return p.stored }

// Remove adds the removal of a stored service after Read.
func (p *Plan) Remove(c Change) {
	s := &Step{Change: c, Outcome: Removed, Stored: p.stored[c.Name]}
	s.Base = s.Stored.revision()
	p.Steps = append(p.Steps, s)
}

// Judge adds the conflicts of the changes to the problems: new unknown fields, other services'
// claims, exhausted pools, mistakes that Apply would refuse, and settings that nodes refuse.
func (p *Plan) Judge(ctx context.Context) error {
	for i := range p.Problems {
		if p.Problems[i].Unknown {
			p.judgeUnknown(&p.Problems[i])
		}
	}
	p.Problems = append(p.Problems, p.contests(p.Steps)...)
	if err := p.judgeAllocations(ctx); err != nil {
		return err
	}
	for _, s := range p.Steps {
		if !s.changes() {
			continue
		}
		if err := p.w.Check(ctx, s.allowed(), s.Stored); err != nil {
			p.Problems = append(p.Problems, s.problem("", err.Error()))
		}
		if s.Service != nil {
			for _, q := range balancer.Untrusted(s.Service, p.Reserved, p.Nodes) {
				q.Origin = s.place(q.Field)
				p.Problems = append(p.Problems, q)
			}
		}
	}
	return nil
}

// problem returns an error in a field of the service.
func (s *Step) problem(field, text string) balancer.Problem {
	return balancer.Problem{Severity: balancer.SeverityError, Origin: s.place(field), Service: s.Name, Field: field, Text: text}
}

// allowed returns the change with its unknown fields permitted, because Judge has accepted them.
func (s *Step) allowed() Change {
	c := s.Change
	c.AllowUnknown = true
	return c
}

// judgeUnknown decides about a field that this version does not know. If etcd already has the
// field, a newer version has written it, so it remains. Other unknown fields are mistakes unless
// the plan permits them.
func (p *Plan) judgeUnknown(problem *balancer.Problem) {
	var stored []balancer.Problem
	if s := p.stored[problem.Service]; s != nil {
		_, stored = balancer.DecodeService(s.Name, s.Fields, nil, nil, balancer.SeverityWarning)
	}
	switch {
	case slices.ContainsFunc(stored, func(q balancer.Problem) bool { return q.Unknown && anyElement(q.Field) == anyElement(problem.Field) }):
		problem.Text += "; it is kept, because the service already has it in etcd"
	case p.AllowUnknown:
		problem.Text += "; it is written unchanged"
	default:
		problem.Severity = balancer.SeverityError
		problem.Text += "; use --allow-unknown to write it unchanged"
	}
}

// element matches an element's index in a field's path.
var element = regexp.MustCompile(`\[[^]]*\]?`)

// anyElement removes the indices from a field's path, because list elements may have moved.
func anyElement(path string) string { return element.ReplaceAllString(path, "") }

// contests returns the conflicts between the steps' claims and other services' claims at the last
// read.
func (p *Plan) contests(steps []*Step) (problems []balancer.Problem) {
	before, changed := map[balancer.Name]*balancer.Service{}, map[balancer.Name]*balancer.Service{}
	for name, addresses := range p.given {
		before[name] = &balancer.Service{Name: name, Allocated: addresses} // its text may be missing or unreadable
	}
	for name, s := range p.stored {
		if s.Service != nil {
			before[name] = p.withGiven(s.Service)
		}
	}
	of := map[balancer.Name]*Step{}
	for _, s := range steps {
		if s.changes() || s.Outcome == Removed {
			of[s.Name], changed[s.Name] = s, s.Service
		}
	}
	for _, c := range balancer.ClaimConflicts(before, changed) {
		problem := c.Problem()
		problem.Origin = of[c.Service.Name].place(c.Field)
		problems = append(problems, problem)
	}
	return problems
}

// withGiven returns a service with the addresses that it holds, if it requests addresses.
func (p *Plan) withGiven(s *balancer.Service) *balancer.Service {
	if s == nil || len(s.Pools) == 0 {
		return s
	}
	joined, given := *s, p.given[s.Name]
	joined.Allocated = given[:min(len(given), len(s.Pools))]
	return &joined
}

// judgeAllocations allocates the requested addresses in a copy of the book. It adds each shortage
// to the problems once.
func (p *Plan) judgeAllocations(ctx context.Context) error {
	if !slices.ContainsFunc(p.Steps, func(s *Step) bool { return s.changes() && len(s.Service.Allocated) < len(s.Service.Pools) }) {
		return nil
	}
	b, err := readHeld(ctx, p.w.client)
	if err == nil {
		err = b.readRest(ctx, p.w.client)
	}
	if err != nil {
		return fmt.Errorf("reading the pools: %w", err)
	}
	short, more := map[string]*Step{}, map[string]int{}
	for _, s := range p.Steps {
		if !s.changes() {
			continue
		}
		a, err := b.choose(s.Service, 0)
		if err == nil {
			b.note(s.Name, s.Service, a, b.revision)
			continue
		}
		if short[err.Error()] == nil {
			short[err.Error()] = s
		} else {
			more[err.Error()]++
		}
	}
	for _, text := range slices.Sorted(maps.Keys(short)) {
		problem := short[text].problem("vips", text)
		if n := more[text]; n > 0 {
			problem.Text += fmt.Sprintf("; other services with this problem: %d", n)
		}
		p.Problems = append(p.Problems, problem)
	}
	return nil
}
