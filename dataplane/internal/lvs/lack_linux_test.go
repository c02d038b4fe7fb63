package lvs

import (
	"strings"
	"testing"
)

// TestLack: each reason is short, for it is repeated wherever the mode in use is shown, and has the command that helps.
func TestLack(t *testing.T) {
	for said, want := range map[string]string{
		"modprobe: FATAL: Module ip_vs not found in directory /lib/modules/" + release(): "kernel " + release() + " has no module ip_vs: install linux-modules-extra-" + release() + " or the like, then `modprobe ip_vs`",
		`exec: "/sbin/modprobe": executable file not found in $PATH`:                     "it is not loaded, and there is no modprobe: install kmod, then `modprobe ip_vs`",
		"modprobe: ERROR: could not insert 'ip_vs': Operation not permitted":             "it is not loaded, and this process may not load modules: `modprobe ip_vs` as root of the host",
		"modprobe: ERROR: could not insert 'ip_vs': Exec format error":                   "it is not loaded, and `modprobe ip_vs` fails: modprobe: ERROR: could not insert 'ip_vs': Exec format error",
	} {
		got := lack(said)
		if got != want || strings.Contains(got, "\n") {
			t.Errorf("%s: got %q, want %q", said, got, want)
		}
	}
}
