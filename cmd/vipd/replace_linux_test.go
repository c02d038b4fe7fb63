package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// TestReplaceUnderLoad replaces vipd with --replace while clients connect at a steady rate and
// streams continue. No client may fail, and no byte may be lost. In make soak, the test replaces
// vipd 20 times. With 200 streams, two idle CPUs serve 489 of 500 new clients a second. A busy
// machine serves fewer. The test prints how many clients it served.
func TestReplaceUnderLoad(t *testing.T) {
	for _, intercept := range []string{"redirect", "bind"} {
		t.Run(intercept, func(t *testing.T) {
			g := newGateway(t)
			g.write(settings("userspace", "auto")+fmt.Sprintf("[userspace]\nintercept = %q\n", intercept), 0, 1)
			g.replaces()
			perSecond := wait.Soak(50, 500)
			load := g.client.Load("10.96.0.10:80", perSecond, wait.Soak(20, 200))
			for range wait.Soak(3, 20) {
				until := load.Served() + int64(perSecond)/4
				wait.For(t, time.Minute, "clients to be served", func() bool { return load.Served() >= until || t.Failed() })
				g.replaces()
			}
			t.Logf("%d new clients a second were served, %d wanted", load.Rate(), perSecond)
			load.Stop()
			g.stop()
		})
	}
}

// replaces starts a vipd that replaces the running vipd. It waits until the old vipd has exited and
// the new vipd is ready.
func (g *gateway) replaces() {
	g.t.Helper()
	vipd := exec.Command(filepath.Join(filepath.Dir(g.vipctl), "vipd"), "--replace", "--config", g.file)
	vipd.Stderr = g.t.Output()
	if err := vipd.Start(); err != nil {
		g.t.Fatal(err)
	}
	ended := sync.OnceFunc(func() {
		if err := vipd.Wait(); err != nil {
			g.t.Errorf("vipd: error = %v, want none", err)
		}
	})
	if g.replaced != nil {
		g.replaced()
	}
	g.replaced = ended
	g.stop = func() {
		_ = vipd.Process.Signal(os.Interrupt)
		ended()
	}
	g.t.Cleanup(g.stop)
	client := api.NewClient(filepath.Join(filepath.Dir(g.file), "run", "d.sock"))
	defer client.Close()
	wait.For(g.t, time.Minute, "the next vipd to be ready", func() bool {
		s, err := client.Status(g.t.Context())
		return err == nil && s.Ready
	})
}
