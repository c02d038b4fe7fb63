package etcd_test

import (
	"errors"
	"fmt"
	"testing"

	"vipd/balancer"
	"vipd/store/etcd/definitions"
	"vipd/test/etcdkit"
)

// planOf returns a plan that sets each named service to a service with that address, or removes the
// service if the address is "".
func planOf(vips map[balancer.Name]string) *definitions.Plan {
	var changes []definitions.Change
	for name, vip := range vips {
		c := definitions.Change{Name: name}
		if vip != "" {
			c.Fields = map[string]any{"vips": []any{vip}, "ports": []any{map[string]any{"port": int64(80)}}}
		}
		changes = append(changes, c)
	}
	return definitions.NewPlan(changes)
}

// outcomes returns a line for each step of a plan, with its service, outcome and error.
func outcomes(p *definitions.Plan) (text string) {
	for _, s := range p.Steps {
		text += fmt.Sprintf("%s %s %v\n", s.Name, s.Outcome, s.Err)
	}
	return text
}

// TestPlan reads, judges and writes a plan that changes services in etcd. In one plan, it must be
// possible to remove a service and to add a service with the same address.
func TestPlan(t *testing.T) {
	t.Parallel()
	_, _, kit := single(t, etcdkit.Options{})
	w := newWriter(t, kit.config)
	first := planOf(map[balancer.Name]string{"gone": "10.0.0.1", "same": "10.0.0.2", "moved": "10.0.0.3"})
	if err := errors.Join(first.Read(t.Context(), w.Writer), first.Judge(t.Context()), first.Write(t.Context())); err != nil || len(first.Problems) > 0 {
		t.Fatal(err, first.Problems)
	}
	p := planOf(map[balancer.Name]string{"gone": "", "same": "10.0.0.2", "moved": "10.0.0.4", "new": "10.0.0.1"})
	if err := errors.Join(p.Read(t.Context(), w.Writer), p.Judge(t.Context()), p.Write(t.Context())); err != nil || len(p.Problems) > 0 {
		t.Fatal(err, p.Problems)
	}
	if got, want := outcomes(p), "moved updated <nil>\nnew created <nil>\nsame unchanged <nil>\ngone removed <nil>\n"; got != want {
		t.Errorf("outcomes =\n%swant\n%s", got, want)
	}
	last := p.Steps[3].Revision
	for _, s := range p.Steps {
		if s.Revision == 0 || s.Revision > last {
			t.Errorf("revision of %s = %d, want 1 to %d", s.Name, s.Revision, last)
		}
	}
}

// TestPlanJudges plans a service that claims the address of another service, and a service that
// requests an address from a missing pool. Judge must report an error for each service.
func TestPlanJudges(t *testing.T) {
	t.Parallel()
	_, _, kit := single(t, etcdkit.Options{})
	w := newWriter(t, kit.config)
	first := planOf(map[balancer.Name]string{"web": "10.0.0.1"})
	if err := errors.Join(first.Read(t.Context(), w.Writer), first.Judge(t.Context()), first.Write(t.Context())); err != nil {
		t.Fatal(err)
	}
	p := planOf(map[balancer.Name]string{"rival": "10.0.0.1", "poor": "auto:green"})
	if err := errors.Join(p.Read(t.Context(), w.Writer), p.Judge(t.Context())); err != nil {
		t.Fatal(err)
	}
	want := map[balancer.Name]string{
		"rival": fmt.Sprintf("service rival: ports[0].port: 10.0.0.1:80/tcp is claimed by service web (%s, revision %d): choose another address or port",
			kit.config.Prefix+"/services/web", first.Steps[0].Revision),
		"poor": `service poor: vips: there is no pool green: create it with "vipctl pool set green CIDR..."`,
	}
	for _, problem := range p.Problems {
		if got := problem.String(); got != want[problem.Service] || problem.Severity != balancer.SeverityError {
			t.Errorf("problem = %q, want %q", got, want[problem.Service])
		}
		delete(want, problem.Service)
	}
	if len(want) > 0 {
		t.Errorf("Judge did not report %v", want)
	}
}

// TestPlanOvertaken makes another writer change a service and claim an address, after a plan was
// judged and before it is written. The plan's changes to this service and with this address must
// fail. Unaffected changes must be written, and a change that the other writer has also made must
// count as unchanged.
func TestPlanOvertaken(t *testing.T) {
	t.Parallel()
	_, _, kit := single(t, etcdkit.Options{})
	w, other := newWriter(t, kit.config), newWriter(t, kit.config)
	p := planOf(map[balancer.Name]string{"changed": "10.0.0.1", "claimed": "10.0.0.2", "free": "10.0.0.3", "agreed": "10.0.0.4"})
	if err := errors.Join(p.Read(t.Context(), w.Writer), p.Judge(t.Context())); err != nil {
		t.Fatal(err)
	}
	faster := planOf(map[balancer.Name]string{"changed": "10.0.0.9", "thief": "10.0.0.2", "agreed": "10.0.0.4"})
	if err := errors.Join(faster.Read(t.Context(), other.Writer), faster.Write(t.Context()), p.Write(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Steps {
		var conflict *definitions.ConflictError
		var contested *definitions.ContestedError
		states := map[balancer.Name]bool{
			"changed": errors.As(s.Err, &conflict), "claimed": errors.As(s.Err, &contested), "free": s.Err == nil && s.Outcome == definitions.Created,
			"agreed": s.Err == nil && s.Outcome == definitions.Unchanged,
		}
		if !states[s.Name] {
			t.Errorf("outcome of service %s = %s, error = %v, want another outcome (see states)", s.Name, s.Outcome, s.Err)
		}
	}
}
