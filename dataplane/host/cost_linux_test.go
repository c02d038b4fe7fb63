package host

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// BenchmarkRound measures the engine's rounds with 10,000 held VIPs. In each round, an endpoint
// changes, or a frontend or a VIP is added and removed again.
func BenchmarkRound(b *testing.B) {
	for _, marked := range []bool{true, false} {
		for _, what := range []string{"endpoint", "port", "VIP", "VIP elsewhere"} {
			b.Run(fmt.Sprintf("marked=%t/%s", marked, what), func(b *testing.B) {
				lab.Require(b)
				l := lab.New(b)
				client := l.Add("client")
				l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24")
				o := DefaultOptions()
				o.RunDir, o.Variant, o.Interface, o.StrictARP, o.Mode = b.TempDir(), xtables.NFT, "lo", false, dataplane.Needs{Forward: true, Marked: marked}
				benchmarkRound(b, o, what)
			})
		}
	}
}

func benchmarkRound(b *testing.B, o Options, what string) {
	h, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := errors.Join(h.Release(context.Background()), h.Close()); err != nil {
			b.Error(err)
		}
	}()
	var frontends []*balancer.Frontend
	for i := range 10_000 {
		frontends = append(frontends, frontend(fmt.Sprintf("10.97.%d.%d:80", i/250, 1+i%250)))
	}
	all := desired(frontends...)
	round := func() {
		if err := h.Prepare(b.Context(), all); err != nil {
			b.Fatal(err)
		}
		if err := h.Finish(b.Context(), all.Frontends); err != nil {
			b.Fatal(err)
		}
	}
	round()
	round()
	more := map[string]*balancer.Frontend{
		"port": frontend("10.97.0.7:81"), "VIP": frontend("10.97.3.253:80"), "VIP elsewhere": frontend("10.200.0.1:80"),
	}[what]
	for i := 0; b.Loop(); i++ {
		switch {
		case more == nil:
			f := *frontends[7]
			f.Backends = append([]balancer.Backend(nil), f.Backends...)
			f.Backends[0].Weight = 2 + i
			all.Frontends = all.Frontends.Set(f.Key, &f)
		case i%2 == 0:
			all.Frontends = all.Frontends.Set(more.Key, more)
			all.Addresses = all.Addresses.Set(more.Addr, 1)
		default:
			all.Frontends = all.Frontends.Delete(more.Key)
			if what != "port" {
				all.Addresses = all.Addresses.Delete(more.Addr)
			}
		}
		round()
	}
}
