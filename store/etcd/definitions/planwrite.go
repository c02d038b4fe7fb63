package definitions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
)

// Write writes each change in a transaction. If another writer was faster, the change gets an
// error, and the other changes are still written. If etcd fails, Write stops and reduces Steps to
// the changes that it has already written.
func (p *Plan) Write(ctx context.Context) error {
	for n, s := range p.Steps {
		if s.Outcome == Unchanged {
			continue
		}
		err := p.write(ctx, n)
		var conflict *ConflictError
		var contested *ContestedError
		switch {
		case err == nil:
		case errors.As(err, &conflict) && p.agrees(ctx, s):
		case errors.As(err, &conflict) || errors.As(err, &contested):
			s.Err = err
		default:
			p.Steps = p.Steps[:n]
			doing := "writing"
			if s.Fields == nil {
				doing = "removing"
			}
			return fmt.Errorf("%s service %s: %w", doing, s.Name, err)
		}
	}
	return p.reread(ctx)
}

// reread reads the services' addresses again if any service requests addresses.
func (p *Plan) reread(ctx context.Context) error {
	asks := func(s *Step) bool { return s.changes() && s.Err == nil && len(s.Service.Pools) > 0 }
	if !slices.ContainsFunc(p.Steps, asks) {
		return nil
	}
	if err := p.read(ctx); err != nil {
		return err
	}
	for _, s := range p.Steps {
		if asks(s) {
			s.Service = p.withGiven(s.Service)
		}
	}
	return nil
}

// maxReadings limits how often all services are read for a change.
const maxReadings = 1000

// These are the minimum and maximum mean pause of a writer before it reads again. The pause grows,
// so many writers do not repeatedly overtake each other.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// overtakenPause returns a random pause after the given number of failed attempts.
func overtakenPause(readings int) time.Duration {
	return rand.N(2 * min(firstPause<<min(readings, 8), longestPause))
}

// write writes a change. If other writers may have added claims since the services were read, it
// reads the services again and checks its own claims.
func (p *Plan) write(ctx context.Context, n int) error {
	s := p.Steps[n]
	for readings := range maxReadings {
		c := s.allowed()
		c.Checked = &p.revision
		r, err := p.w.Apply(ctx, c)
		if _, ok := errors.AsType[*StaleError](err); !ok {
			if err == nil {
				s.Revision = r.Revision
			}
			return err
		}
		wake.Sleep(ctx, overtakenPause(readings))
		if err := p.read(ctx); err != nil {
			return err
		}
		lost := slices.DeleteFunc(p.contests(p.Steps[n:]), func(problem balancer.Problem) bool {
			return problem.Service != s.Name || problem.Severity == balancer.SeverityWarning
		})
		if len(lost) > 0 {
			return &ContestedError{lost}
		}
	}
	return errors.New("other clients keep claiming addresses or ports: try again")
}

// ContestedError means that another service has claimed the same address since the change was
// checked.
type ContestedError struct{ Problems []balancer.Problem }

func (e *ContestedError) Error() string {
	var all []string
	for _, p := range e.Problems {
		all = append(all, p.String())
	}
	return strings.Join(all, "; ")
}

// agrees reports whether the faster writer wrote the same definition. If so, it changes the step's
// outcome to Unchanged.
func (p *Plan) agrees(ctx context.Context, s *Step) bool {
	now, err := p.w.Service(ctx, s.Name)
	switch {
	case err != nil:
		return false
	case s.Fields == nil || now == nil:
		return s.Fields == nil && now == nil
	case !now.Matches(s.Fields):
		return false
	}
	s.Outcome, s.Revision = Unchanged, now.Revision
	return true
}
