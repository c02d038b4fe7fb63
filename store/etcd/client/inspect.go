package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
)

// inspect tests every member except the member in use. It returns a problem for each member that
// fails, in the order of the configuration.
func (s *Members) inspect(ctx context.Context, limit time.Duration) []balancer.Problem {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	used := s.current.Load()
	failed := make([]error, len(s.config.Endpoints))
	var asking sync.WaitGroup
	for i, endpoint := range s.config.Endpoints {
		if used != nil && endpoint != used.endpoint {
			asking.Go(func() { failed[i] = s.inspectOne(ctx, endpoint, used) })
		}
	}
	asking.Wait()
	problems := []balancer.Problem{}
	for i, err := range failed {
		if err == nil {
			continue
		}
		reason := "does not answer"
		if !IsTimeout(err) && !undecided(err) { // these errors alternate while a member has lost the others
			reason += fmt.Sprintf(" (%v)", Plain(err))
		}
		problems = append(problems, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"etcd's member at %s %s: vipd uses other members; check that it is running and can reach the other members (etcdctl endpoint status --cluster)",
			s.config.Endpoints[i], reason)})
	}
	return problems
}

// inspectOne tests a single member.
func (s *Members) inspectOne(ctx context.Context, endpoint string, used *Member) error {
	m, err := s.config.open(endpoint)
	if err != nil {
		return err
	}
	defer m.close()
	m.use(used)
	_, err = m.prove(ctx, s.key)
	return err
}

// inspect reports failed members, soon after the start and then at the interval at which rights are
// checked.
func (s *stream) inspect(ctx context.Context) {
	for pause := s.timing.Ask; wake.Sleep(ctx, pause/2+rand.N(pause)); pause = s.timing.CheckRights {
		if problems := s.members.inspect(ctx, s.timing.Call); ctx.Err() == nil {
			s.send(ctx, Message{Members: problems})
		}
	}
}
