package balancer

import (
	"fmt"
	"slices"
)

// winner returns the service that gets key: the one that had it before, or else the first by
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

// lostClaim returns the problem of a service that claims f, if service to has won it. A program
// that only reads files knows no holders, so it may name another loser than the daemon.
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
