package balancer

import (
	"maps"
	"slices"
)

// Compile compiles everything from scratch. It is the specification of Compiler: both must return
// the same results.
func Compile(env Env, in Inputs) Desired {
	var out Desired
	for a := range in.DrainingVIPs.Keys() {
		out.Addresses = out.Addresses.Set(a, 0)
	}
	units := map[Name]*compiledService{}
	claimants := newClaimants()
	for name, s := range in.Services.All() {
		u := compileService(&env, s, &in)
		units[name] = u
		for _, a := range u.direct {
			if first, ok := out.Direct.Get(a); !ok || name < first {
				out.Direct = out.Direct.Set(a, name)
			}
		}
		for _, f := range u.claims {
			claimants.add(f.Key, s)
		}
	}
	for key := range claimants.byKey {
		if s, contested := claimants.winner(key, &in); contested {
			out.Contested = out.Contested.Set(key, s.Name)
		}
	}
	winnerOf := func(k Key) *Service { s, _ := claimants.winner(k, &in); return s }
	for _, u := range units {
		for _, f := range u.claims {
			if winnerOf(f.Key) != u.service {
				continue
			}
			out.Frontends = out.Frontends.Set(f.Key, withForeign(withMemory(f, &in), u, maps.Values(units)))
			if !f.NodePort {
				out.Addresses = out.Addresses.Set(f.Addr, out.Addresses.At(f.Addr)+1)
			}
		}
	}
	for k, f := range out.Frontends.All() {
		out.Frontends = out.Frontends.Set(k, f.withOpen(out.Frontends))
	}
	for name, u := range units {
		problems := slices.Concat(u.problems, u.endpointsAtVIPs(&env, out.Frontends), u.lostClaims(winnerOf))
		if len(problems) > 0 {
			out.Problems = out.Problems.Set(name, &problems)
		}
	}
	for a := range out.Addresses.Keys() {
		if now := vipStateOf(a, &env, &in, &out); now != "" {
			out.VIPStates = out.VIPStates.Set(a, now)
			out.Frontends = markWithdrawn(a, now, &env, out.Frontends)
		}
	}
	return out
}
