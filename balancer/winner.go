package balancer

import (
	"fmt"
	"slices"
	"strings"
)

// winner returns the service that gets key: the former holder, or otherwise the first by
// compareClaims.
func winner(key Key, claimants []*Service, in *Inputs) *Service {
	if holder, ok := in.Holders.Get(key); ok {
		i := slices.IndexFunc(claimants, func(s *Service) bool { return s.Name == holder })
		if i >= 0 {
			return claimants[i]
		}
	}
	return slices.MinFunc(claimants, compareClaims)
}

// lostClaims returns the problems of the frontends that the service claims and other services have
// won. A node port has a frontend on each address of the node, so its frontends that the same
// service has won share a problem. A program that only reads files has no list of holders, so it
// may name a different loser than the daemon.
func (u *compiledService) lostClaims(winnerOf func(Key) *Service) (problems []Problem) {
	type nodePort struct {
		field string
		to    Name
	}
	first, more := map[nodePort]int{}, map[nodePort]int{}
	for _, f := range u.claims {
		to := winnerOf(f.Key)
		if to == u.service {
			continue
		}
		p := u.lostClaim(f, to)
		at := nodePort{p.Field, to.Name}
		if _, known := first[at]; known && f.NodePort {
			more[at]++
			continue
		}
		first[at] = len(problems)
		problems = append(problems, p)
	}
	for at, n := range more {
		p := &problems[first[at]]
		p.Text = strings.Replace(p.Text, " is held by", fmt.Sprintf(" and %d more of this node's addresses are held by", n), 1)
	}
	return problems
}

// lostClaim returns the problem of a service that claims f, if service to has won it.
func (u *compiledService) lostClaim(f *Frontend, to *Service) Problem {
	i := slices.IndexFunc(u.service.Ports, func(p Port) bool { return p.Name == f.Port })
	field := fmt.Sprintf("ports[%d].port", i)
	if f.NodePort {
		field = fmt.Sprintf("ports[%d].node_port", i)
	}
	at := Problem{Origin: to.Origin}.place()
	if at != "" {
		at = " (" + at + ")"
	}
	return Problem{
		Severity: SeverityError, Origin: u.service.Origin.At(field), Service: u.service.Name, Field: field, Kind: Held,
		Text: f.Key.String() + " is held by service " + string(to.Name) + at + ": choose another address or port",
	}
}
