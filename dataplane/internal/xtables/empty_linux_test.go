package xtables

import (
	"os/exec"
	"testing"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// empty empties all tables before and after the test.
func empty(t *testing.T) {
	t.Helper()
	lab.Require(t)
	lab.Need(t, "iptables", "nft")
	t.Cleanup(func() {
		if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
			t.Errorf("removing all tables: %v: %s", err, out)
		}
		for _, tool := range []string{"iptables-legacy", "ip6tables-legacy"} {
			for _, table := range []string{"nat", "filter", "mangle", "raw"} {
				for _, flag := range []string{"-F", "-X"} {
					_ = exec.Command(tool, "-w", "-t", table, flag).Run() // fails if the kernel lacks the table
				}
			}
		}
	})
}
