package ipset

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// empty gives the test a namespace without sets, and destroys all sets that the test leaves there.
func empty(t *testing.T) {
	t.Helper()
	lab.Require(t)
	lab.Need(t, "ipset")
	t.Cleanup(func() {
		lab.Eventually(t, 10*time.Second, "rules that are gone to leave their sets", func() error {
			if out, err := exec.Command("ipset", "destroy").CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})
}
