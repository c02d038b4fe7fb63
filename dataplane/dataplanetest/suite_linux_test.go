package dataplanetest

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// faultVar is the environment variable that contains the fault of TestReference's dataplane.
const faultVar = "VIPD_DATAPLANETEST_FAULT"

func TestReference(t *testing.T) {
	var newest *reference
	Run(t, Subject{
		Name: "reference",
		New: func(testing.TB) dataplane.Dataplane {
			if newest != nil && newest.kept { // this reference represents state that a kernel would keep
				newest.kept = false
				return newest
			}
			newest = newReference(fault(os.Getenv(faultVar)))
			return newest
		},
		ExactWeights: os.Getenv(faultVar) != "favours one",
		Keeps:        true,
		Connections:  500,
		Damage:       map[string]func(testing.TB){"sockets": func(testing.TB) { newest.damage() }},
		Skip: map[string]string{
			"routed/limits":     "the reference has no limits; all modes do",
			"narrow":            "the reference does not bound segments; all modes do",
			"routed/unanswered": "the reference does not count failures; all modes do",
		},
	})
}

// TestFaultsAreNoticed runs one of the suite's cases for each fault, with a dataplane that has the
// fault. The case must fail.
func TestFaultsAreNoticed(t *testing.T) {
	lab.Require(t)
	noticed := map[fault]string{
		"IPv4 only":                 "layouts/routed/forwarded",
		"shows the VIP":             "layouts/routed/local",
		"mixes ports up":            "routed/ports/tcp4",
		"knows one target port":     "routed/targets/tcp4",
		"never meets itself":        "routed/host-endpoint/udp6",
		"ignores weights":           "routed/shares",
		"forgets clients":           "routed/affinity",
		"throws clients back":       "routed/affinity",
		"never forgets clients":     "routed/affinity-ends",
		"lets everyone in":          "routed/source-ranges",
		"never refuses":             "routed/no-endpoints/none/tcp4",
		"drains not at all":         "drains",
		"drains for ever":           "routed/drain-timeout",
		"drains no services":        "routed/service-drains",
		"cuts nothing":              "routed/on-failure",
		"kills nothing":             "routed/killed",
		"disturbs others rarely":    "routed/undisturbed",
		"keeps flows":               "routed/udp-follows",
		"keeps flows of node ports": "routed/udp-follows",
		"leaves services":           "routed/service-drains",
		"closes both halves":        "routed/streams",
		"cuts datagrams":            "routed/streams",
		"miscounts":                 "routed/connections/udp4",
		"disturbs itself":           "routed/idempotent",
		"observes too little":       "routed/order",
		"favours one":               "routed/spread/wrr-7-mixed",
		"loses what it keeps":       "routed/close",
		"hashes nothing":            "routed/hashes/sh",
		"moves everybody":           "routed/hashes/mh",
		"bounds nothing":            "routed/max-connections",
		"ends what leaves":          "drains",
		"trips over its past":       "kills",
		"clears rules of others":    "foreign",
		"sees no damage":            "damage",
	}
	for _, f := range slices.Sorted(maps.Keys(noticed)) {
		t.Run(strings.ReplaceAll(string(f), " ", "-"), func(t *testing.T) {
			t.Parallel() // most of these cases wait for an event that never happens
			cmd := exec.Command(os.Args[0], "-test.run="+only("TestReference/"+noticed[f]))
			cmd.Env = append(lab.Apart(os.Environ()), faultVar+"="+string(f), wait.PatienceVar+"=5s")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestReference/"+noticed[f]) {
				t.Errorf("case %s passes for a dataplane that %s, want a failure: %v\n%s", noticed[f], f, err, out)
			}
		})
	}
}

// TestSuiteHasEveryScheduler looks for a test case for each scheduler. Without a test case, a mode
// that lacks the scheduler could pass the suite.
func TestSuiteHasEveryScheduler(t *testing.T) {
	have := append(clientHashes(), balancer.DestinationHash)
	for _, sh := range shares() {
		have = append(have, sh.scheduler)
	}
	for _, name := range balancer.Scheduler("").Values() {
		if !slices.Contains(have, balancer.Scheduler(name)) {
			t.Errorf("scheduler %s has no test case, want it in shares or clientHashes", name)
		}
	}
}
