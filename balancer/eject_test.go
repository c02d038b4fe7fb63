package balancer_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
)

// TestEjection gives each endpoint a state by a letter: u is up, d is down, ? is unknown, e is up
// and ejected, and x is down and ejected. An ejected endpoint may serve only if no other endpoint
// can.
func TestEjection(t *testing.T) {
	backup := func(i int) func(*balancer.Service) {
		return func(s *balancer.Service) { s.Endpoints[i].Backup = true }
	}
	for _, c := range []struct {
		name, known string
		change      func(*balancer.Service)
		want        string
		room        int // budget that remains for the first endpoint
	}{
		{"one of two", "eu", nil, "1:ejected/0 2:active/1", 0},
		{"none of one", "u", nil, "1:active/1", 0},
		{"none of one, but it is ejected", "e", nil, "1:active/1", -1},
		{"one more of four", "euuu", nil, "1:ejected/0 2:active/1 3:active/1 4:active/1", 1},
		{"one of three", "uuu", nil, "1:active/1 2:active/1 3:active/1", 1},
		{"one that is down counts", "uduu", nil, "1:active/1 2:down/0 3:active/1 4:active/1", 1},
		{"down and ejected counts once", "xuuu", nil, "1:down/0 2:active/1 3:active/1 4:active/1", 1},
		{"others went down since", "eddu", nil, "1:ejected/0 2:down/0 3:down/0 4:active/1", -1},
		{"the last one", "edd", nil, "1:active/1 2:down/0 3:down/0", -2},
		{"all", "ee", nil, "1:active/1 2:active/1", -1},
		{"a backup serves", "eu", backup(1), "1:ejected/0 2:active/1", 0},
		{"a backup is ejected", "ue", backup(1), "1:active/1 2:ejected/0", 0},
		{"an unknown one serves", "e?", nil, "1:ejected/0 2:active/1", 0},
		{"a draining one does not count", "uuu", func(s *balancer.Service) { s.Endpoints[1].Draining, s.Endpoints[2].Weight = true, 0 },
			"1:active/1 2:draining/0 3:zero-weight/0", 0},
		{"nobody who drains is ejected", "euu", func(s *balancer.Service) { s.Endpoints[0].Draining = true }, "1:draining/0 2:active/1 3:active/1", 0},
		{"one further away serves", "eu", func(s *balancer.Service) { s.Locality, s.Endpoints[0].Node = balancer.PreferNode, "n1" },
			"1:ejected/0 2:active/1", 0},
		{"only those of this node count", "uu", func(s *balancer.Service) { s.Locality, s.Endpoints[0].Node = balancer.NodeOnly, "n1" },
			"1:active/1 2:remote/0", 0},
		{"one that is down on another node does not count", "eud", func(s *balancer.Service) {
			s.Locality, s.Endpoints[0].Node, s.Endpoints[1].Node = balancer.NodeOnly, "n1", "n1"
		}, "1:ejected/0 2:active/1 3:down/0", 0},
		{"a panic uses all", "eddd", func(s *balancer.Service) { s.Health.PanicThreshold = 50 }, "1:active/1 2:active/1 3:active/1 4:active/1", -2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := oneService("web", 1, 0)
			s.Health = &balancer.Health{}
			var in balancer.Inputs
			for i, k := range c.known {
				e := balancer.Endpoint{Address: addr(fmt.Sprintf("192.168.1.%d", i+1)), Weight: 1}
				s.Endpoints = append(s.Endpoints, e)
				at := balancer.Target{Service: "web", Addr: e.Address, Port: 8080}
				switch k {
				case 'u', 'e':
					in.Health = in.Health.Set(at, balancer.HealthUp)
				case 'd', 'x':
					in.Health = in.Health.Set(at, balancer.HealthDown)
				}
				if strings.ContainsRune("ex", k) {
					in.Ejected = in.Ejected.Set(at, balancer.Ejection{Count: 1})
				}
			}
			if c.change != nil {
				c.change(s)
			}
			in.Services = in.Services.Set("web", s)
			env := plainEnv()
			env.Node = "n1"
			if got := states(env, in, "10.96.0.1:80"); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			first := balancer.Target{Service: "web", Addr: addr("192.168.1.1"), Port: 8080}
			if got := balancer.NewEjectionBudget(&env, &in).Remaining(first, in.Ejected); got != c.room {
				t.Errorf("Remaining() = %d, want %d", got, c.room)
			}
		})
	}
}

// TestEjectionServes ejects random endpoints. A frontend must serve if and only if it would serve
// without ejections.
func TestEjectionServes(t *testing.T) {
	for seed := range uint64(300) {
		h := newHistory(seed)
		for range 60 {
			h.step()
		}
		without := h.in
		without.Ejected = balancer.Inputs{}.Ejected
		plain, got := balancer.Compile(h.env, without), balancer.Compile(h.env, h.in)
		for k, f := range plain.Frontends.All() {
			if f.Serves() != got.Frontends.At(k).Serves() {
				t.Fatalf("seed %d: frontend %s: the ejections %v change Serves():\nwith %+v\nwithout %+v", seed, k, h.in.Ejected, got.Frontends.At(k), f)
			}
		}
	}
}

// TestEjectionBudget ejects random endpoints within the budget. At most half of a frontend's
// endpoints may be ejected or failing. A budget that is used repeatedly must return the same
// results as a new budget.
func TestEjectionBudget(t *testing.T) {
	ejected := 0
	for seed := range uint64(300) {
		h := newHistory(seed)
		for range 40 {
			h.step()
		}
		h.in.Ejected = balancer.Inputs{}.Ejected
		rooms := balancer.NewEjectionBudget(&h.env, &h.in)
		for step := range 30 {
			at := h.checked()
			if got, want := rooms.Has(at), isEndpoint(&h.env, &h.in, at); got != want {
				t.Fatalf("seed %d: Has(%s) = %v, want %v", seed, at, got, want)
			}
			room := rooms.Remaining(at, h.in.Ejected)
			if want := balancer.NewEjectionBudget(&h.env, &h.in).Remaining(at, h.in.Ejected); room != want {
				t.Fatalf("seed %d: ejected %v: Remaining = %d for %s, want %d", seed, h.in.Ejected, room, at, want)
			}
			if h.in.Ejected.Has(at) && step%2 == 0 {
				h.in.Ejected = h.in.Ejected.Delete(at)
			}
			if h.in.Ejected.Has(at) || room <= 0 {
				continue
			}
			ejected++
			h.in.Ejected = h.in.Ejected.Set(at, balancer.Ejection{Count: 1})
			for k, f := range balancer.Compile(h.env, h.in).Frontends.All() {
				if able, out, down := counted(h, f); f.Service == at.Service && out > max(able/2, down) {
					t.Fatalf("seed %d: after ejecting %s, %d of %d backends of %s are ejected or down, want at most half, or only the down ones: %+v", seed, at, out, able, k, f.Backends)
				}
			}
		}
	}
	if ejected < 100 {
		t.Errorf("ejections = %d, want at least 100", ejected)
	}
}

func isEndpoint(env *balancer.Env, in *balancer.Inputs, t balancer.Target) bool {
	s, ok := in.Services.Get(t.Service)
	return ok && slices.ContainsFunc(balancer.UsedEndpoints(env, s, in), func(e *balancer.Endpoint) bool {
		return e.Address == t.Addr && slices.ContainsFunc(s.Ports, func(q balancer.Port) bool { return e.TargetPort(&q) == t.Port })
	})
}

func counted(h *history, f *balancer.Frontend) (able, out, down int) {
	s := h.in.Services.At(f.Service)
	for _, b := range f.Backends {
		switch b.State {
		case balancer.Down:
			if s.Locality != balancer.NodeOnly || nodeOf(h, s, f, b.Addr) == h.env.Node {
				able, out, down = able+1, out+1, down+1
			}
		case balancer.Ejected:
			able, out = able+1, out+1
		case balancer.Active, balancer.Standby, balancer.Untested:
			able++
		case balancer.Remote:
			if s.Locality != balancer.NodeOnly {
				able++
			}
		}
	}
	return able, out, down
}

// nodeOf returns the node of the first endpoint in s that is the backend at in f.
func nodeOf(h *history, s *balancer.Service, f *balancer.Frontend, at netip.AddrPort) string {
	port := s.Ports[slices.IndexFunc(s.Ports, func(p balancer.Port) bool { return p.Name == f.Port })]
	for _, e := range balancer.UsedEndpoints(&h.env, s, &h.in) {
		if netip.AddrPortFrom(e.Address, e.TargetPort(&port)) == at {
			return e.Node
		}
	}
	return ""
}
