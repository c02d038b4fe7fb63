package iptables

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// iptables runs the iptables program of the rig's backend, and returns its output.
func (r *rig) iptables(args ...string) string {
	r.Helper()
	program := "iptables-" + string(r.d.families[inet.IPv4].tool.Variant())
	out, err := exec.Command(program, append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput()
	if err != nil {
		r.Fatalf("%s %s: %v: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// observe compares everything in the kernel with the wanted state, and applies the frontends that
// differ, as the engine does. It describes the differences.
func (r *rig) observe(frontends ...*balancer.Frontend) (wrong []string) {
	r.Helper()
	seen, err := r.d.Observe(context.Background())
	if err != nil {
		r.Fatal(err)
	}
	wrong = seen.Damage
	var batch []dataplane.Change
	for _, f := range frontends {
		if len(seen.Damage) > 0 || seen.ReapplyAll || seen.Digests[f.Key] != r.d.Digest(f) {
			batch = append(batch, dataplane.Change{Key: f.Key, New: f})
			wrong = append(wrong, f.Key.String())
		}
		delete(seen.Digests, f.Key)
	}
	for k := range seen.Digests {
		batch = append(batch, dataplane.Change{Key: k})
		wrong = append(wrong, k.String()+"  is unexpected")
	}
	if len(batch) > 0 {
		if err := r.d.Apply(context.Background(), batch); err != nil {
			r.Fatal(err)
		}
	}
	return wrong
}

// TestReplacedRule replaces one of vipd's rules. The next full comparison must detect this, even if
// it is the first comparison of a new process.
func TestReplacedRule(t *testing.T) {
	eachBackend(t, func(r *rig) {
		f := r.web(balancer.TCP, 2)
		r.apply(f)
		chain := frontChain(f.Key)
		for _, restart := range []bool{false, true} {
			r.iptables("-R", chain, "1", "-p", "tcp", "-j", "DNAT", "--to-destination", "10.2.0.7:8080")
			if _, name := r.ask(balancer.TCP); name != "s7" {
				r.Fatalf("before the comparison: server = %s, want s7", name)
			}
			if restart {
				if err := r.d.Close(context.Background(), true); err != nil {
					r.Fatal(err)
				}
				r.d = r.open(r.d.families[inet.IPv4].tool.Variant())
				r.d.reapplied = false // the rig has already called Observe
			}
			r.observe(f)
			if _, name := r.ask(balancer.TCP); name != "s2" {
				r.Errorf("restart %v: server after the comparison = %s, want s2", restart, name)
			}
			if wrong := r.observe(f); len(wrong) > 0 {
				r.Errorf("restart %v: differences after the repair = %v, want none", restart, wrong)
			}
		}
	})
}

// TestCountsOfDeletedRules deletes rules that count connections. The reported counts must not
// decrease.
func TestCountsOfDeletedRules(t *testing.T) {
	eachBackend(t, func(r *rig) {
		f := r.web(balancer.TCP, 2, 3, 4)
		r.apply(f)
		for range 12 {
			r.ask(balancer.TCP)
		}
		before, _, _ := r.counted()
		r.iptables("-D", frontChain(f.Key), "2")
		r.observe(f)
		if after, _, _ := r.counted(); after < before || before != 12 {
			r.Errorf("counted connections = %d before and %d after the deletion, want 12 and no decrease", before, after)
		}
	})
}

// TestOrphans creates chains that an earlier process could have left, also in a family without
// services. A chain must be deleted unless another program's rule jumps to it. Such a rule must not
// make other changes fail.
func TestOrphans(t *testing.T) {
	eachBackend(t, func(r *rig) {
		six := strings.Replace("iptables-"+string(r.d.families[inet.IPv4].tool.Variant()), "ip", "ip6", 1)
		if out, err := exec.Command(six, "-t", "nat", "-N", nodePrefix+"4").CombinedOutput(); err != nil {
			r.Fatalf("creating a chain: %v: %s", err, out)
		}
		r.iptables("-N", groupPrefix+"old")
		r.iptables("-N", groupPrefix+"held")
		r.iptables("-A", "PREROUTING", "-s", "192.0.2.1", "-j", groupPrefix+"held")
		f := r.web(balancer.TCP, 2)
		r.observe(f)
		r.observe(f)
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("server = %s, want s2", name)
		}
		rules := r.iptables("-S")
		if strings.Contains(rules, groupPrefix+"old") {
			r.Errorf("rules =\n%s\nwant no chain from the earlier process", rules)
		}
		if out, err := exec.Command(six, "-t", "nat", "-S").CombinedOutput(); err != nil || strings.Contains(string(out), nodePrefix) {
			r.Errorf("error = %v, other family's rules =\n%s\nwant no chain from the earlier process", err, out)
		}
		if wrong := r.observe(f); len(wrong) > 0 {
			r.Errorf("differences = %v, want none", wrong)
		}
		r.iptables("-D", "PREROUTING", "-s", "192.0.2.1", "-j", groupPrefix+"held")
	})
}

// TestDeletedJumpNoticed deletes a jump just after vipd has changed the table. Comparisons of this
// table are slow and therefore rare. The next check must still find the damage.
func TestDeletedJumpNoticed(t *testing.T) {
	eachBackend(t, func(r *rig) {
		var many []*balancer.Frontend
		for i := range 2000 {
			f := r.web(balancer.TCP, 2, 3, 4)
			f.Port, f.Key.Port = fmt.Sprint("p", i), balancer.PortRange(1000+i)
			many = append(many, f)
		}
		r.apply(many...)
		look := func() string {
			reason, err := r.d.Intact(context.Background())
			if err != nil {
				r.Fatal(err)
			}
			return reason
		}
		if reason := look(); reason != "" {
			r.Fatal(reason)
		}
		r.apply(r.web(balancer.TCP, 2))
		started := time.Now()
		if reason := look(); reason != "" {
			r.Fatal(reason)
		}
		r.Logf("a check after a change of ours took %v", time.Since(started))
		r.iptables("-D", "PREROUTING", "-j", rootChain)
		if look() == "" {
			r.Error("Intact = \"\", want a reason about the missing jump")
		}
	})
}

// TestSlotsOfRestoredService adds a removed service again, with other endpoints in the previous
// endpoints' slots. The new endpoints must not get the previous endpoints' clients.
func TestSlotsOfRestoredService(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.apply(r.sticky(2, 3))
		for range 2 {
			r.ask(balancer.TCP)
		}
		f := r.sticky(4, 5)
		if err := r.d.Apply(context.Background(), []dataplane.Change{{Key: f.Key}}); err != nil {
			r.Fatal(err)
		}
		r.apply(f)
		for slot := range 2 {
			entries, err := r.d.sets.List(stickySet(slot, inet.IPv4))
			if err != nil || len(entries) > 0 {
				r.Errorf("entries of %s = %v, error = %v; want none", stickySet(slot, inet.IPv4), entries, err)
			}
		}
	})
}

// TestLostRoot deletes the root chain and the jumps to it. A full comparison must detect this, and
// Apply must restore them.
func TestLostRoot(t *testing.T) {
	eachBackend(t, func(r *rig) {
		var all []*balancer.Frontend
		for i := range 100 { // enough frontends for a tree of several chains
			f := r.web(balancer.TCP, 2)
			f.Port, f.Key.Port = fmt.Sprint("p", i), balancer.PortRange(80+i)
			all = append(all, f)
		}
		r.apply(all...)
		for _, hook := range hooks() {
			r.iptables("-D", hook, "-j", rootChain)
		}
		r.iptables("-F", rootChain)
		r.iptables("-X", rootChain)
		if wrong := r.observe(all...); len(wrong) == 0 {
			r.Error("differences = none, want one about the missing root chain")
		}
		if _, name := r.ask(balancer.TCP); name != "s2" {
			r.Errorf("server = %s, want s2", name)
		}
		if wrong := r.observe(all...); len(wrong) > 0 {
			r.Errorf("differences after the repair = %v, want none", wrong)
		}
	})
}
