//go:build linux

package userspace

import (
	"log/slog"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/host"
	"vipd/test/wait"
)

func TestConformance(t *testing.T) {
	subject := func(intercept Interception) dataplanetest.Subject {
		return dataplanetest.Subject{
			Name:         "userspace, " + string(intercept),
			ExactWeights: true,
			Connections:  500,
			New: func(t testing.TB) dataplane.Dataplane {
				d, err := New(Options{Log: slog.New(slog.DiscardHandler), Intercept: intercept})
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
		}
	}
	t.Run("bind", func(t *testing.T) { // as on a host without guard and iptables
		s := subject(Bind)
		const why = "a UDP port with flows stays open for those, so that nobody tells new clients no"
		s.Skip = map[string]string{"routed/no-endpoints/weight-0/udp4": why, "routed/no-endpoints/weight-0/udp6": why}
		dataplanetest.Run(t, s)
	})
	t.Run("bind-guarded", func(t *testing.T) { // as on a host where vipd adds VIPs
		s := subject(Bind)
		s.Host = func(t testing.TB) dataplane.Host { return dataplanetest.GuardedHost(t, host.DefaultOptions()) }
		dataplanetest.Run(t, s, "waiting", "uplinks", "withdrawn")
	})
	t.Run("redirect", func(t *testing.T) {
		if _, err := New(Options{Intercept: Redirect}); err != nil {
			t.Skip("needs redirection: ", err)
		}
		s := subject(Redirect)
		s.Host = guarded
		s.Damage = dataplanetest.Damages("")
		s.Scratches = dataplanetest.Scratches()
		s.Cleanup = cleanup
		s.Skip = shownByBind()
		dataplanetest.Run(t, s)
	})
}

// shownByBind returns the cases that run with redirects only in "make soak". Some test accepted
// connections, whose behavior does not depend on how they arrived. The others damage parts of the
// guard that do not affect redirects.
func shownByBind() map[string]string {
	skip := map[string]string{}
	if wait.Soaking() {
		return skip
	}
	for _, name := range []string{
		"spread", "shares", "sticky-schedulers", "hashes", "max-connections", "affinity", "affinity-ends", "affinity-scope", "affinity-prefix", "source-ranges", "drain-timeout",
		"on-failure", "streams", "service-drains",
	} {
		skip["routed/"+name] = "make soak runs it: it is about what bind shows"
	}
	for _, name := range []string{
		"tables", "chain-nat", "chain-filter", "jumps", "rules", "sets", "entry", "entry6", "address", "addresses",
		"guard-bypassed", "guard-emptied", "guard-flushed",
	} {
		skip["damage/"+name] = "make soak runs it: it breaks the guard alone, as in nftables mode"
	}
	return skip
}

func guarded(t testing.TB) dataplane.Host {
	t.Helper()
	o := host.DefaultOptions()
	o.Mode.Translates, o.Mode.TranslatesAll = true, true
	return dataplanetest.GuardedHost(t, o)
}

// cleanup does what vipctl cleanup does.
func cleanup(t testing.TB) {
	t.Helper()
	_, err := Cleanup(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.Cleanup(t.Context(), host.DefaultOptions(), false); err != nil {
		t.Fatal(err)
	}
}
