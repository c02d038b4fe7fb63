package iptables

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/guard"
	"vipd/dataplane/host"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestConformance runs the conformance suite with each iptables backend.
func TestConformance(t *testing.T) {
	for _, backend := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			s := subject(options(backend))
			s.Skip = soakOnly(backend)
			dataplanetest.Run(t, s)
		})
	}
}

// TestIPVSFastPathConformance runs one test of the conformance suite with a fast path. "make soak"
// runs all tests.
func TestIPVSFastPathConformance(t *testing.T) {
	lab.NeedIPVS(t) // the emulated guest that has IPVS also has flowtables
	o := options(xtables.NFT)
	o.FastPath = []string{guard.FastPathAuto}
	var cases []string
	if !wait.Soaking() {
		cases = []string{"drains"}
	}
	dataplanetest.Run(t, subject(o), cases...)
}

// subject describes iptables mode to the conformance suite, with a host that uses these options.
func subject(o host.Options) dataplanetest.Subject {
	return dataplanetest.Subject{
		Name:     "iptables, " + string(o.Variant),
		Backend:  string(o.Variant),
		Keeps:    true,
		Survives: true,
		New: func(t testing.TB) dataplane.Dataplane {
			d, err := New(context.Background(), Options{Log: slog.New(slog.DiscardHandler), Variant: o.Variant, Mark: guard.Mark(o.MasqueradeBit)})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Host:      func(t testing.TB) dataplane.Host { return dataplanetest.GuardedHost(t, o) },
		Cleanup:   cleanup(o.Variant),
		Damage:    dataplanetest.Damages(string(o.Variant)),
		Scratches: dataplanetest.Scratches(),
	}
}

// soakOnly returns the tests that run only in "make soak". With the nft backend, these tests check
// the effects of rules. Both backends have the same rules and need the same kernel matches, so the
// legacy backend already covers these tests. The other tests check how the nft backend writes,
// replaces and finds rules. With the legacy backend, the tests in the list damage the guard, as
// TestGuardDamage in dataplane/host also does, or remove one of several addresses.
func soakOnly(backend xtables.Variant) map[string]string {
	skip := map[string]string{}
	if wait.Soaking() {
		return skip
	}
	if backend == xtables.Legacy {
		for _, damage := range []string{"guard-deleted", "guard-flushed", "guard-bypassed", "guard-emptied", "entry", "entry6", "address"} {
			skip["damage/"+damage] = "make soak runs it: TestGuardDamage of dataplane/host, and the other damages, show the same"
		}
		return skip
	}
	const why = "make soak runs it: the text of the rules is that of the legacy backend"
	for _, name := range dataplanetest.Scenes() {
		if !slices.Contains([]string{"many", "order", "idempotent", "close", "service-drains", "killed", "port-reuse"}, name) {
			skip["routed/"+name] = why
		}
	}
	for _, layout := range []string{"one-arm", "astray", "shared-vip", "own-address"} {
		skip["layouts/"+layout] = why
	}
	for _, damage := range []string{
		"sets", "addresses", "entry", "entry6", "address", "others-first", "guard-bypassed", "guard-emptied", "guard-flushed",
	} {
		skip["damage/"+damage] = why
	}
	for _, name := range []string{"policy-drop", "snat", "narrow", "drains"} {
		skip[name] = why
	}
	return skip
}

// options returns the host's options in the conformance suite.
func options(backend xtables.Variant) host.Options {
	o := host.DefaultOptions()
	o.Variant, o.Mode = backend, Needs()
	return o
}

func cleanup(backend xtables.Variant) func(t testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		_, err := Cleanup(context.Background(), false)
		_, hostErr := host.Cleanup(context.Background(), options(backend), false)
		if err != nil || hostErr != nil {
			t.Fatal(err, hostErr)
		}
	}
}
