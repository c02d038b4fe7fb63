package balancer

import (
	"fmt"
	"slices"
)

// winner chooses among the services that claim key: the one that had it, else the first by compareClaims.
func winner(key Key, claimants []*Service, in *Inputs) *Service {
	if holder, ok := in.Holders.Get(key); ok {
		i := slices.IndexFunc(claimants, func(s *Service) bool { return s.Name == holder })
		if i >= 0 {
			return claimants[i]
		}
	}
	return slices.MinFunc(claimants, compareClaims)
}

// lost is the problem of a service whose claim of f another service has won. Who only reads files knows no holders, and
// may name another loser than a daemon does.
func (u *unit) lost(f *Frontend, to *Service) Problem {
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
