package daemon_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestTraceOfKernelModes changes a service in each kernel mode. The trace must contain the number
// of restores or netlink batches, and their bytes.
func TestTraceOfKernelModes(t *testing.T) {
	lab.New(t)
	for _, name := range []config.ModeName{config.NFTablesMode, config.IPTablesMode} {
		tracesKernelMode(t, name, "apply 1 in 1 batches with bytes")
	}
}

// TestIPVSTrace makes the same check as TestTraceOfKernelModes, but in ipvs mode.
func TestIPVSTrace(t *testing.T) {
	lab.NeedIPVS(t)
	lab.New(t)
	tracesKernelMode(t, config.IPVSMode, "apply 1 in ")
}

func tracesKernelMode(t *testing.T, name config.ModeName, want string) {
	t.Run(string(name), func(t *testing.T) {
		r := startReceiver(t)
		mode, _ := modes.Find(name)
		n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
		n.cleansUp()
		web := strings.NewReplacer("127.40.0.1", "10.96.0.10", "127.40.1.1", "10.2.1.2").Replace(web)
		write := func(services string) {
			n.configure(`mode = "userspace"`, fmt.Sprintf("mode = %q", name), fmt.Sprintf("[tracing]\notlp_endpoint = %q\n", r.URL)+services)
		}
		write(web)
		n.start()
		t.Cleanup(func() { n.stop() })
		write(web + strings.NewReplacer("services.web", "services.more", "10.96.0.10", "10.96.0.11").Replace(web))
		wait.For(t, 0, want, func() bool {
			return slices.ContainsFunc(r.trees(), func(tree string) bool {
				return strings.HasPrefix(tree, "change of store more ") && strings.Contains(tree, want)
			})
		})
	})
}
