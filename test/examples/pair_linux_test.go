package examples

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestPair runs make demo-pair's script. After each fault there must be exactly one owner. The
// client must reach a server before and after each fault.
func TestPair(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "ip", "ping", "curl", "awk")
	tree := program.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(0))
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(tree.Top, "examples", "pair", "demo")).CombinedOutput()
	if err != nil {
		t.Fatalf("demo: error = %v, want none\n%s", err, out)
	}
	for _, want := range []string{
		`A client asks: web2[12] `, `planned.* +\d+ ms`, `kill -9 .* +\d+ ms`, `cut off the LAN +\d+ ms`, `asks again: web2[12] `,
		`one host owns the VIP: gw[12]\n$`,
	} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("output of the demo lacks %q; output =\n%s", want, out)
		}
	}
	t.Logf("%s", out)
}

// TestPairFiles checks the files in examples/pair with vipctl and keepalived. Both programs must
// accept their files.
func TestPairFiles(t *testing.T) {
	l := lab.New(t)
	lab.Need(t, "ip", "keepalived")
	gateway := l.Add("gateway")
	gateway.Exec("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1") // keepalived needs the interface that its file names
	tree := program.New(t)
	for _, host := range []string{"gw1", "gw2"} {
		if out, err := tree.Shell(t, "bin/vipctl check --mode userspace examples/pair/"+host+".toml", wait.Patience); err != nil {
			t.Errorf("vipctl check: %v\n%s", err, out)
		}
		gateway.Exec("keepalived", "--config-test", "--use-file="+filepath.Join(tree.Top, "examples", "pair", host+".keepalived.conf"))
	}
}
