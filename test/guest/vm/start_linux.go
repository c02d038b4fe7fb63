package vm

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"vipd/test/wait"
)

// startScript returns the script that the guest's first process runs once it can read the host's
// files. The script sets up an ordinary machine, runs the command, reports its exit, and switches
// off. The ports are in the order of machine.args.
func (m machine) startScript(command []string) string {
	var b strings.Builder
	k, o := m.kernel, m.options
	env := append(os.Environ(), o.Env...)
	env = append(env, GuestVar+"=1", wait.SlownessVar+"="+m.slowness(), wait.CostVar+"="+cost)
	for _, e := range env {
		if name, value, _ := strings.Cut(e, "="); isName(name) {
			fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
		}
	}
	fmt.Fprintf(&b, `export PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /run/lock /lib/modules/%[1]s /dev/pts /dev/shm
mount --bind %[2]s /lib/modules/%[1]s
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd; ln -sf fd/0 /dev/stdin; ln -sf fd/1 /dev/stdout; ln -sf fd/2 /dev/stderr
hostname guest
ip link set lo up
ports=(/dev/vport*p1 /dev/vport*p2 /dev/vport*p3)
exec 3>"${ports[2]}"
`, k.release, quote(k.modules()))
	if o.Writable != "" {
		fmt.Fprintf(&b, "mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 writable %s || exit\n", quote(o.Writable))
	}
	fmt.Fprintf(&b, "cd %s || exit\n", quote(o.Dir))
	for _, word := range command {
		b.WriteString(quote(word) + " ")
	}
	b.WriteString("</dev/null >${ports[0]} 2>${ports[1]} 3>&-\necho ended $? >&3\nsync\n/bin/busybox poweroff -f\n")
	return b.String()
}

// cost is wait.CostVar in the guest: emulated code is 15 times slower, but tests also wait.
const cost = "10"

// slowness returns wait.SlownessVar for the guest. Emulated code is 15 times slower, but tests
// rarely wait for the CPU. A guest whose clock counts instructions seems fast, except that it runs
// only one process at a time.
func (m machine) slowness() string {
	if m.counted() {
		return "3"
	}
	return "10"
}

func isName(s string) bool {
	letter := func(r rune) bool { return r == '_' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' }
	return s != "" && letter(rune(s[0])) && !slices.ContainsFunc([]rune(s), func(r rune) bool { return !letter(r) && (r < '0' || r > '9') })
}

// quote quotes a word for the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
