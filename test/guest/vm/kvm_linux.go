package vm

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// trialLimit is the maximum time for a boot under KVM. If KVM works, a boot lasts a second.
const trialLimit = 20 * time.Second

// kvmWorks reports whether a guest boots under KVM here. It caches the result of a trial until the
// host reboots.
func kvmWorks(ctx context.Context, cacheDir string, m machine) bool {
	const device = "/dev/kvm"
	if unix.Access(device, unix.R_OK|unix.W_OK) != nil {
		return false
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false
	}
	memory := filepath.Join(cacheDir, "kvm")
	if known, ok := recall(memory, string(boot)); ok {
		return known
	}
	m.options.Log("trying KVM, for at most %s", trialLimit)
	works := m.trial(ctx)
	if ctx.Err() == nil {
		remember(memory, string(boot), works)
	}
	return works
}

// trial boots the machine under KVM, and reports whether it reaches the init script.
func (m machine) trial(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, trialLimit)
	defer cancel()
	args := append(m.base("vipd.trial"), "-accel", "kvm", "-cpu", "host", "-m", "512", "-smp", strconv.Itoa(m.options.CPUs))
	out, err := m.command(ctx, args).CombinedOutput()
	console, _ := os.ReadFile(m.console())
	if err == nil && strings.Contains(string(console), "vipd: the trial is over") {
		return true
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	m.options.Log("KVM does not work here, so guests are emulated: %v %s", err, strings.TrimSpace(string(out)))
	return false
}

// recall reads a result that was saved since the host's boot.
func recall(path, boot string) (answer, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return false, false
	}
	rest, ok := strings.CutPrefix(string(text), boot)
	return rest == "works\n", ok && (rest == "works\n" || rest == "fails\n")
}

// remember saves a result. If that fails, the next guest tries KVM again.
func remember(path, boot string, answer bool) {
	text := boot + "fails\n"
	if answer {
		text = boot + "works\n"
	}
	_ = os.WriteFile(path, []byte(text), 0o644)
}
