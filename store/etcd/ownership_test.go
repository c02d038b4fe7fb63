package etcd_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"vipd/balancer/ownership"
	"vipd/store/etcd"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestOwnershipWithoutRights: a host that may not write what it owns takes part in nothing, and says which right it lacks.
func TestOwnershipWithoutRights(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	c.EnableAuth(etcdkit.User{Name: "half", Password: "secret", Read: []string{"/vipda/"}})
	config := p.config
	config.Username, config.PasswordFile = "half", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := etcd.NewOwnership(config, "gw1")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var reported string
	o.Member = func() ownership.Member { return ownership.Member{Boot: 1} }
	o.Tell = func([]ownership.Change, int64, bool) { t.Error("records were read by a host that is not registered") }
	o.Secrets, o.Standby = func([][]byte) {}, func(bool, ownership.Request) {}
	o.Report = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			reported = err.Error()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { o.Run(ctx) })
	defer running.Wait()
	defer cancel()
	wait.For(t, etcdkit.Patience, "the right that is missing", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(reported, "/vipda/ownership/") && strings.Contains(reported, "half")
	})
	if outcome, _, err := o.Write(ctx, ownership.Write{Put: []ownership.Put{{Key: ownership.Key{Kind: ownership.VIPs, Name: "10.0.0.1"}, Text: []byte("{}")}}}); err == nil {
		t.Errorf("writing comes to %v", outcome)
	}
}
