package ipvs

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"vipd/test/lab"
)

// TestIPVSFollowsConntrack raises the IPVS timeout of TCP connections to conntrack's timeout. The
// timeout must have its old value when another program adds a virtual server, and after Cleanup.
func TestIPVSFollowsConntrack(t *testing.T) {
	lab.NeedIPVS(t)
	lab.Need(t, "ipvsadm")
	lab.New(t)
	t.Cleanup(func() { _ = exec.Command("ipvsadm", "-C").Run() })
	if err := os.WriteFile(conntrackTimeout, []byte("86400"), 0); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	d, err := New(t.Context(), Options{RunDir: dir, FollowConntrack: true})
	if err != nil {
		t.Fatal(err)
	}
	is := func(when string, want time.Duration) {
		t.Helper()
		if got, err := TCPTimeout(t.Context()); got != want || err != nil {
			t.Errorf("%s: timeout = %s, %v; want %s", when, got, err, want)
		}
	}
	observe := func() {
		t.Helper()
		if _, err := d.Observe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	observe()
	is("raised", 24*time.Hour)
	for _, command := range [][]string{{"-A", "-f", "7", "-s", "wrr"}, {"-D", "-f", "7"}} {
		if out, err := exec.Command("ipvsadm", command...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
		observe()
		if command[0] == "-A" {
			is("with a foreign virtual server", 15*time.Minute)
		}
	}
	is("raised again", 24*time.Hour)
	if err := d.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	is("after the end", 24*time.Hour)
	if _, err := Cleanup(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	is("after Cleanup", 15*time.Minute)
}
