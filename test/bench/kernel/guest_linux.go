package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vipd/test/guest/vm"
)

// connections sets the size of IPVS's connection table to vipd's: 1<<20 buckets.
const connections = "conn_tab_bits=20"

// hasIPVS reports whether this kernel has IPVS, or can load it. It does not load IPVS, because the
// module needs options. Within a guest it returns true, so no second guest starts.
func hasIPVS() bool {
	return isLoaded() || exec.Command("modprobe", "-qn", "ip_vs").Run() == nil || emulated()
}

func isLoaded() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

func loadIPVS() error {
	if isLoaded() {
		return nil
	}
	if out, err := exec.Command("modprobe", "ip_vs", connections).CombinedOutput(); err != nil {
		return fmt.Errorf("loading IPVS: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// emulated reports whether this is a guest. Guests with KVM count as emulated, so they are measured
// longer than necessary.
func emulated() bool { return os.Getenv(vm.GuestVar) != "" }

// preferSoftirqs gives the kernel threads that process delayed packets a higher priority than the
// sender. Otherwise the sender would use all CPU time, and no packet would be processed. It is used
// only in guests, because only guests are slow enough to need it, and their kernel is discarded
// afterwards.
func preferSoftirqs() error {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return err
	}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), "ksoftirqd/") {
			continue // the process has exited, or does not process delayed packets
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return err
		}
		if err := unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
			return fmt.Errorf("letting %s run first: %w", strings.TrimSpace(string(comm)), err)
		}
	}
	return nil
}

// inGuest runs this program in a guest.
func inGuest(ctx context.Context, o options, args []string) error {
	if err := vm.Missing(); err != nil {
		fmt.Println("not measured: ipvs mode: this kernel has no IPVS, and", err)
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	fmt.Println("In a guest, because this kernel has no IPVS. It is emulated: its figures say nothing, but their ratios do.")
	// With two CPUs the guest uses the host's clock. With one CPU its clock counts instructions, so
	// cache misses would cost nothing and a large table would seem as fast as a small one.
	settings := vm.Options{CPUs: 2, Memory: 3072, Limit: time.Hour, Stdout: os.Stdout, Stderr: os.Stderr,
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, "guest: "+format+"\n", args...) }}
	if o.full {
		settings.Limit = 3 * time.Hour
	}
	status, err := vm.Run(ctx, settings, append([]string{self}, args...)...)
	if err == nil && status != 0 {
		err = errors.New("ended early") // the reason was printed
	}
	return err
}
