package doctor

import (
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane/ipvs"
	"vipd/test/lab"
)

// TestIPVSReal examines a host whose kernel has IPVS, with virtual servers of another program.
func TestIPVSReal(t *testing.T) {
	lab.NeedIPVS(t)
	lab.Need(t, "ipvsadm")
	lab.New(t)
	t.Cleanup(func() { run(t, "ipvsadm -C") })
	h := namespace(t)
	real, ok := modes.Find(config.IPVSMode)
	if !ok {
		t.Fatal("there is no ipvs mode")
	}
	h.Modes, h.Config.RunDir = []modes.Mode{real}, t.TempDir()
	h.Owned = func() ([]balancer.Key, error) { return ipvs.Owned(h.Config.RunDir) }
	h.Frontends[0].Scheduler = balancer.Maglev
	sees(t, h, OK, "ipvs mode works here")
	sees(t, h, OK, "auto uses ipvs mode, the best that works here")
	if left := string(must(t, h.ReadFile, ipvsTable)); strings.Count(left, "\n") != 3 {
		t.Errorf("the trial left:\n%s", left)
	}
	sees(t, h, OK, "the kernel has the schedulers that services use: ip_vs_mh")
	sees(t, h, "", "IPVS finds connections in a table of ") // the size depends on the program that loaded ip_vs
	misses(t, h, "virtual servers of other programs")

	for _, line := range []string{
		"ipvsadm -A -t 10.96.0.10:81 -s rr", "ipvsadm -A -u [2001:db8::1]:53 -s wrr", "ipvsadm -A -f 7 -s wrr",
	} {
		run(t, line)
	}
	sees(t, h, Note, "on VIPs of services, on other ports: 10.96.0.10:81/tcp")
	sees(t, h, Note, "there are virtual servers of other programs: [2001:db8::1]:53/udp, mark 7")
	run(t, "ipvsadm -A -t 10.96.0.10:80 -s rr")
	run(t, sees(t, h, Problem, "are where services are: 10.96.0.10:80/tcp").Mend)
	h.Owned = func() ([]balancer.Key, error) { return []balancer.Key{h.Frontends[0].Key}, nil }
	misses(t, h, "where services are")
}

// about returns the findings of modes and ipvs whose text contains the part. The other checks are
// slow in a guest.
func about(t *testing.T, h Host, part string) []Finding {
	t.Helper()
	o := observe(t.Context(), h, "filter")
	o.tryModes(t.Context())
	all := runChecks(t.Context(), o, slices.DeleteFunc(checks(), func(c check) bool { return c.name != "modes" && c.name != "ipvs" }))
	return slices.DeleteFunc(all, func(f Finding) bool { return !strings.Contains(f.What, part) })
}

// sees requires one finding of this level; "" means any level.
func sees(t *testing.T, h Host, level Level, part string) Finding {
	t.Helper()
	found := about(t, h, part)
	if len(found) != 1 || level != "" && found[0].Level != level {
		t.Fatalf("findings = %+v for %q, want one of level %s; all: %+v", found, part, level, about(t, h, ""))
	}
	return found[0]
}

func misses(t *testing.T, h Host, part string) {
	t.Helper()
	if found := about(t, h, part); len(found) > 0 {
		t.Errorf("findings = %+v, want nothing about %q", found, part)
	}
}
