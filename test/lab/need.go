package lab

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/test/wait"
)

// Tests represents the tests of a package. It is a *testing.M, or a wrapper that makes additional
// checks after the tests.
type Tests interface {
	// Run runs the tests, and returns the exit code.
	Run() int
}

// packageOf maps a tool to its Debian package.
func packageOf(tool string) string {
	switch tool {
	case "iptables", "ip6tables", "iptables-restore", "ip6tables-restore", "iptables-save", "ip6tables-save",
		"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy":
		return "iptables"
	case "ip", "bridge", "ss", "tc":
		return "iproute2"
	case "systemctl", "systemd-analyze":
		return "systemd"
	case "nsenter", "setpriv", "unshare":
		return "util-linux"
	case "nft":
		return "nftables"
	case "modprobe", "depmod":
		return "kmod"
	case "sysctl", "pgrep":
		return "procps"
	case "ping":
		return "iputils-ping"
	case "etcd":
		return "etcd-server"
	case "bird":
		return "bird2"
	case "etcdctl":
		return "etcd-client"
	}
	return tool
}

// Need skips the test unless every tool is installed.
func Need(t testing.TB, tools ...string) {
	t.Helper()
	var missing, packages []string
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
			packages = append(packages, packageOf(tool))
		}
	}
	if len(missing) > 0 {
		t.Skipf("needs %s: apt-get install %s", strings.Join(missing, ", "), strings.Join(packages, " "))
	}
}

// Eventually waits until check returns nil, and fails the test with check's last error after
// wait.Bound(within). It polls every few milliseconds.
func Eventually(t testing.TB, within time.Duration, what string, check func() error) {
	t.Helper()
	within = wait.Bound(within)
	deadline := time.Now().Add(within)
	for pause := time.Millisecond; ; pause = min(2*pause, 16*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, within, err)
		}
		time.Sleep(pause)
	}
}
