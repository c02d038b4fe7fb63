package ipvs

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/dataplanetest"
	"vipd/dataplane/host"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	"vipd/test/wait"
)

// backend is the iptables variant that the guard uses. Virtual servers do not depend on it.
const backend = xtables.NFT

// ended is the reason why some kinds of damage end connections.
const ended = "with expire_nodest_conn the kernel ends those of a destination that is deleted (since Linux 5.9 at once)"

// udpTimeout returns the suite's udp_timeout. It is longer than the pauses between a flow's
// packets, even on a slow machine, but short enough for a test to wait until it has passed.
func udpTimeout() time.Duration { return min(wait.Scaled(10*time.Second), 30*time.Second) }

func TestIPVSConformance(t *testing.T) {
	lab.NeedIPVS(t)
	dataplanetest.Run(t, dataplanetest.Subject{
		Name:           "ipvs",
		Backend:        string(backend),
		ExactWeights:   true,
		Keeps:          true,
		Survives:       true,
		VirtualServers: true,
		// The kernel remembers a connection for 10 seconds after its client has reset it, and a
		// flow for udp_timeout.
		Remembers: max(10*time.Second, udpTimeout()),
		New: func(t testing.TB) dataplane.Dataplane {
			d, err := New(context.Background(), Options{
				Log: slog.New(slog.DiscardHandler), RunDir: options().RunDir, UDPTimeout: udpTimeout(),
			})
			if err != nil {
				t.Fatal(err)
			}
			return spoilt(t, d)
		},
		Host:      guarded,
		Ends:      map[string]string{"virtual-servers": ended, "virtual-server": ended, "destinations": ended},
		Cleanup:   cleanup,
		Damage:    damages(),
		Scratches: scratches(),
		Skip:      elsewhere(),
	})
}

// elsewhere returns the cases that an emulated guest runs only in "make soak". Most of them test
// compiled services, the guard and addresses, which are the same in all modes. The remaining ones
// test how connections are distributed. The kernel does this by weight, and this package's own
// tests check the weights.
func elsewhere() map[string]string {
	skip := map[string]string{}
	if !wait.Emulated() || wait.Soaking() {
		return skip
	}
	for _, name := range []string{
		"foreign", "damage/others-first", "routed/targets", "routed/ports", "routed/many",
		"damage/guard-deleted", "damage/guard-bypassed", "damage/guard-emptied", "damage/guard-flushed", "damage/tables", "damage/chain-nat",
		"damage/chain-filter", "damage/rules", "damage/sets", "damage/entry", "damage/entry6", "damage/address",
		"routed/spread", "routed/hashes", "damage/addresses",
	} {
		skip[name] = "make soak runs it here: other modes show the same"
	}
	return skip
}

// faultVar is the environment variable that names the fault of the dataplane in
// TestIPVSConformance.
const faultVar = "VIPD_IPVS_FAULT"

// TestIPVSFaultsAreNoticed runs the suite with faults that only a dataplane with virtual servers
// can have. The suite must fail for each fault.
func TestIPVSFaultsAreNoticed(t *testing.T) {
	lab.NeedIPVS(t)
	noticed := map[string]string{
		"forwards by nat":        "straight/dr/tcp4",
		"clears what others own": "foreign-servers",
	}
	for fault, name := range noticed {
		t.Run(strings.ReplaceAll(fault, " ", "-"), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestIPVSConformance$/^"+strings.ReplaceAll(name, "/", "$/^")+"$")
			cmd.Env = append(os.Environ(), faultVar+"="+fault, wait.PatienceVar+"=5s")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestIPVSConformance/"+name) {
				t.Errorf("case %s passes for a dataplane that %s, want a failure: %v\n%s", name, fault, err, out)
			}
		})
	}
}

// spoilt returns d, or a version of d with the fault that faultVar names.
func spoilt(t testing.TB, d *Dataplane) dataplane.Dataplane {
	switch os.Getenv(faultVar) {
	case "forwards by nat":
		return nat{d}
	case "clears what others own":
		dataplanetest.ClearVirtualServers(t)
	}
	return d
}

// nat is a faulty dataplane that forwards all frontends by NAT.
type nat struct{ *Dataplane }

func (n nat) Apply(ctx context.Context, batch []dataplane.Change) error {
	batch = slices.Clone(batch)
	for i, c := range batch {
		if c.New != nil {
			f := *c.New
			f.Forward = balancer.NATForward
			batch[i].New = &f
		}
	}
	return n.Dataplane.Apply(ctx, batch)
}

func damages() map[string]func(t testing.TB) {
	all := dataplanetest.Damages(string(backend))
	all["virtual-servers"] = dataplanetest.ClearVirtualServers
	return fewer(all)
}

func scratches() map[string]func(t testing.TB) {
	all := dataplanetest.Scratches()
	maps.Copy(all, dataplanetest.VirtualServerDamages())
	return fewer(all)
}

// fewer returns damages. In an emulated guest, it first deletes most functions that damage the
// guard, because the suite in dataplane/nftables and TestGuardDamage in dataplane/host also damage
// the guard.
func fewer(damages map[string]func(t testing.TB)) map[string]func(t testing.TB) {
	if wait.Emulated() && !wait.Soaking() {
		for _, name := range []string{"chain-nat", "chain-filter", "entry6", "jumps", "rules", "sets", "entry"} {
			delete(damages, name)
		}
	}
	return damages
}

func options() host.Options {
	o := host.DefaultOptions()
	o.Variant, o.Mode = backend, dataplane.Needs{Forward: true, LocalIn: true}
	return o
}

func guarded(t testing.TB) dataplane.Host {
	t.Helper()
	return dataplanetest.GuardedHost(t, options())
}

// cleanup does what vipctl cleanup does.
func cleanup(t testing.TB) {
	t.Helper()
	_, err := Cleanup(context.Background(), options().RunDir, false)
	_, hostErr := host.Cleanup(context.Background(), options(), false)
	if err != nil || hostErr != nil {
		t.Fatal(err, hostErr)
	}
}
