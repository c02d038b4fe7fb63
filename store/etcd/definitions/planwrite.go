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

// Write makes the changes, one transaction each. A change that another writer has overtaken gets an
// error, and the others are made. If etcd fails, Write stops, and Steps has only the changes that
// were written before.
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
				doing = "removal"
			}
			return fmt.Errorf("%s of %s: %w", doing, s.Name, err)
		}
	}
	return p.reread(ctx)
}

// reread reads the addresses of the services again, if any asks for one.
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

// maxReadings is the maximum number of readings of all services for one change.
const maxReadings = 1000

// The mean pause of a writer before it reads again grows from firstPause to longestPause, so many
// writers don't overtake each other all the time.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// overtakenPause returns a random pause after so many readings that were overtaken.
func overtakenPause(readings int) time.Duration {
	return rand.N(2 * min(firstPause<<min(readings, 8), longestPause))
}

// write makes one change. If others may have added claims since the services were read, it reads
// them again, and checks its own claims.
func (p *Plan) write(ctx context.Context, n int) error {
	s := p.Steps[n]
	for readings := range maxReadings {
		c := s.allowed()
		c.Checked = p.revision
		r, err := p.w.Apply(ctx, c)
		var stale *StaleError
		if !errors.As(err, &stale) {
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
	return errors.New("others claim addresses or ports all the time")
}

// ContestedError reports that another service has claimed the same since the change was judged.
type ContestedError struct{ Problems []balancer.Problem }

// Error returns the problems in one line.
func (e *ContestedError) Error() string {
	var all []string
	for _, p := range e.Problems {
		all = append(all, p.String())
	}
	return strings.Join(all, "; ")
}

// agrees reports whether the faster writer wrote the same.
func (p *Plan) agrees(ctx context.Context, s *Step) bool {
	now, err := p.w.Service(ctx, s.Name)
	switch {
	case err != nil:
		return false
	case s.Fields == nil || now == nil:
		return s.Fields == nil && now == nil
	case !now.Says(s.Fields):
		return false
	}
	s.Outcome, s.Revision = Unchanged, now.Revision
	return true
}
