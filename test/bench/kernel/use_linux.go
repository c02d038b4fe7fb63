package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// settling is the pause before CPU time is measured.
const settling = 3 * time.Second

// use returns the CPU time that the box's process and its exited children use during over, in
// percent of one core. For the measure disturbed, another process adds a rule every 100 ms during
// that time.
func (h *host) use(ctx context.Context, what measure, over time.Duration) (float64, error) {
	if what == disturbed {
		ctx, cancel := context.WithCancel(ctx)
		stranger := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf("while iptables-%s --wait -A INPUT -p tcp --dport 9 -j ACCEPT; do sleep 0.1; done", h.backend))
		if err := stranger.Start(); err != nil {
			cancel()
			return 0, fmt.Errorf("starting someone who changes rules: %w", err)
		}
		defer func() { // wait for the process only at the end, because from then on its CPU time counts as this process's
			cancel()
			_ = stranger.Wait()
		}()
	}
	runtime.GC()         // collecting the load's garbage is not part of the idle costs
	time.Sleep(settling) // don't measure the load
	began := time.Now()
	before, err := cpuTime()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(over):
	}
	after, err := cpuTime()
	if err != nil {
		return 0, err
	}
	return 100 * (after - before).Seconds() / time.Since(began).Seconds(), nil
}

// cpuTime returns the CPU time of this process and of its reaped children.
func cpuTime() (sum time.Duration, err error) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if err := unix.Getrusage(who, &used); err != nil {
			return 0, fmt.Errorf("asking for CPU time: %w", err)
		}
		sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return sum, nil
}
