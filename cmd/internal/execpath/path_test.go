package execpath

import (
	"os"
	"os/exec"
	"testing"
)

func TestWith(t *testing.T) {
	for path, want := range map[string]string{
		"":                                "/usr/local/sbin:/usr/sbin:/sbin",
		"/usr/local/bin:/usr/bin:/bin":    "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
		"/sbin/:/usr/bin":                 "/sbin/:/usr/bin:/usr/local/sbin:/usr/sbin",
		"/usr/sbin:/usr/local/sbin:/sbin": "/usr/sbin:/usr/local/sbin:/sbin",
	} {
		if got := with(path); got != want {
			t.Errorf("with(%q) = %q, want %q", path, got, want)
		}
		if again := with(want); again != want {
			t.Errorf("with(%q) = %q, want it unchanged", want, again)
		}
	}
}

// TestAddFolders sets a PATH without programs. After AddFolders, iptables must be found in
// /usr/sbin.
func TestAddFolders(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/iptables"); err != nil {
		t.Skip("needs iptables in /usr/sbin: ", err)
	}
	t.Setenv("PATH", t.TempDir())
	if path, err := exec.LookPath("iptables"); err == nil {
		t.Fatalf("before AddFolders: path of iptables = %s, want none", path)
	}
	AddFolders()
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Error(err)
	}
}
