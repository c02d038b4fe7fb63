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

// TestIPVSReal examines a host whose kernel has IPVS. ipvs mode must work, and other programs'
// virtual servers must be found.
func TestIPVSReal(t *testing.T) {
	lab.NeedIPVS(t)
	lab.Need(t, "ipvsadm")
	lab.New(t)
	t.Cleanup(func() { run(t, "ipvsadm -C") })
	h := namespace(t)
	real, ok := modes.Find(config.IPVSMode)
	if !ok {
		t.Fatal("ipvs mode is missing, want it to exist")
	}
	h.Modes, h.Config.RunDir = []modes.Mode{real}, t.TempDir()
	h.Recorded = func() ([]balancer.Key, error) { return ipvs.Recorded(h.Config.RunDir) }
	h.Frontends[0].Scheduler = balancer.Maglev
	wantIPVSFinding(t, h, OK, "ipvs mode works here")
	wantIPVSFinding(t, h, OK, "auto uses ipvs mode, the best mode that works here")
	if left := string(must(t, h.ReadFile, ipvsTable)); strings.Count(left, "\n") != 3 {
		t.Errorf("after the trial: virtual servers =\n%s\nwant the same as before", left)
	}
	wantIPVSFinding(t, h, OK, "the kernel has the schedulers that services use: ip_vs_mh")
	wantIPVSFinding(t, h, "", "IPVS finds connections in a table of ") // the level depends on the table's size
	wantNoIPVSFinding(t, h, "other programs have virtual servers")

	for _, line := range []string{
		"ipvsadm -A -t 10.96.0.10:81 -s rr", "ipvsadm -A -u [2001:db8::1]:53 -s wrr", "ipvsadm -A -f 7 -s wrr",
	} {
		run(t, line)
	}
	wantIPVSFinding(t, h, Note, "on services' VIPs, on other ports: 10.96.0.10:81/tcp")
	wantIPVSFinding(t, h, Note, "other programs have virtual servers: [2001:db8::1]:53/udp, mark 7")
	run(t, "ipvsadm -A -t 10.96.0.10:80 -s rr")
	run(t, wantIPVSFinding(t, h, Problem, "use services' addresses and ports: 10.96.0.10:80/tcp").Fix)
	h.Recorded = func() ([]balancer.Key, error) { return []balancer.Key{h.Frontends[0].Key}, nil }
	wantNoIPVSFinding(t, h, "use services' addresses and ports")
}

// ipvsFindings returns the findings from the checks "modes" and "ipvs" that contain part. It runs
// no other checks, because they are slow in a virtual machine.
func ipvsFindings(t *testing.T, h Host, part string) []Finding {
	t.Helper()
	o := observe(t.Context(), h, "filter")
	o.tryModes(t.Context())
	all := runChecks(t.Context(), o, slices.DeleteFunc(checks(), func(c check) bool { return c.name != "modes" && c.name != "ipvs" }))
	return slices.DeleteFunc(all, func(f Finding) bool { return !strings.Contains(f.What, part) })
}

// wantIPVSFinding requires exactly one finding that contains part, and returns it. The finding must
// have the level, unless level is "".
func wantIPVSFinding(t *testing.T, h Host, level Level, part string) Finding {
	t.Helper()
	found := ipvsFindings(t, h, part)
	if len(found) != 1 || level != "" && found[0].Level != level {
		t.Fatalf("findings = %+v that contain %q, want one finding with level %s; all findings: %+v", found, part, level, ipvsFindings(t, h, ""))
	}
	return found[0]
}

func wantNoIPVSFinding(t *testing.T, h Host, part string) {
	t.Helper()
	if found := ipvsFindings(t, h, part); len(found) > 0 {
		t.Errorf("findings = %+v, want nothing about %q", found, part)
	}
}
