package ipvs

import (
	"context"
	"log/slog"
	"maps"
	"testing"
	"time"

	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/host"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// backend is the variant of iptables under the guard, which is the same for virtual servers with either.
const backend = xtables.NFT

func TestIPVSConformance(t *testing.T) {
	lab.NeedIPVS(t)
	dataplanetest.Run(t, dataplanetest.Subject{
		Name:           "ipvs",
		Backend:        string(backend),
		ExactWeights:   true,
		Keeps:          true,
		Survives:       true,
		VirtualServers: true,
		// What a client has reset is remembered for 10 seconds, a flow for as long as udp_timeout says.
		Remembers: 10 * time.Second,
		New: func(t testing.TB) dataplane.Dataplane {
			d, err := New(context.Background(), Options{
				Log: slog.New(slog.DiscardHandler), RunDir: options().RunDir, UDPTimeout: 8 * time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Host:      guarded,
		Cleanup:   cleanup,
		Damage:    damages(),
		Scratches: scratches(),
	})
}

func damages() map[string]func(t testing.TB) {
	all := dataplanetest.Damages(string(backend))
	all["virtual-servers"] = dataplanetest.ClearVirtualServers
	return all
}

func scratches() map[string]func(t testing.TB) {
	all := dataplanetest.Scratches()
	maps.Copy(all, dataplanetest.VirtualServerDamages())
	return all
}

// options are those of the host as vipd keeps it in this mode.
func options() host.Options {
	o := host.DefaultOptions()
	o.Backend, o.Mode = backend, host.Mode{Forward: true, IPVS: true}
	return o
}

func guarded(t testing.TB) dataplane.Host {
	t.Helper()
	h, err := host.New(options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Release(context.Background()); err != nil {
			t.Errorf("releasing the host: %v", err)
		}
		if err := h.Close(); err != nil {
			t.Errorf("closing the host: %v", err)
		}
	})
	return h
}

// cleanup is what vipctl cleanup does.
func cleanup(t testing.TB) {
	t.Helper()
	_, err := Cleanup(context.Background(), options().RunDir, false)
	_, hostErr := host.Cleanup(context.Background(), options(), false)
	if err != nil || hostErr != nil {
		t.Fatal(err, hostErr)
	}
}
