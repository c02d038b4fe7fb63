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

// Compile is the specification: what is to be applied, from nothing but its arguments. Its cost grows with
// everything; Compiler.Next gives the same answer for the cost of what changed.
func Compile(env Env, in Inputs) Desired {
	var out Desired
	for a := range in.Leaving.Keys() {
		out.Addresses = out.Addresses.Set(a, 0)
	}
	units := map[Name]*unit{}
	claimants := map[Key][]*Service{}
	for name, s := range in.Services.All() {
		u := compileService(&env, s, &in)
		units[name] = u
		for _, f := range u.claims {
			claimants[f.Key] = append(claimants[f.Key], s)
		}
	}
	for key, all := range claimants {
		if len(all) > 1 {
			out.Contested = out.Contested.Set(key, winner(key, all, &in).Name)
		}
	}
	for name := range in.Services.Keys() {
		u := units[name]
		problems := slices.Clone(u.problems)
		for _, f := range u.claims {
			if w := winner(f.Key, claimants[f.Key], &in); w != u.service {
				problems = append(problems, u.lost(f, w))
				continue
			}
			out.Frontends = out.Frontends.Set(f.Key, remembered(f, &in))
			if !f.NodePort {
				out.Addresses = out.Addresses.Set(f.Addr, out.Addresses.At(f.Addr)+1)
			}
		}
		if len(problems) > 0 {
			out.Problems = out.Problems.Set(name, &problems)
		}
	}
	for a := range out.Addresses.Keys() {
		if now := standingOf(a, &env, &in, &out); now != "" {
			out.Standings = out.Standings.Set(a, now)
		}
	}
	return out
}
