package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"vipd/test/guest/vm"
	"vipd/test/program"
)

const (
	// guestLimit ends a guest that hangs. On a quiet machine all tests take it a tenth of that.
	guestLimit = 75 * time.Minute
	// testLimit ends the tests in it, so that they say what they were at. It is of the guest's own time, of which a minute
	// may take several.
	testLimit = 15 * time.Minute
	// guestsAtMost bounds how many there are: each needs up to 2 GiB.
	guestsAtMost = 4
	// guestParallel is how many test processes run in each at once: tests wait half of their time.
	guestParallel = 2
)

// where names the guests in the report.
const where = "in the guest"

// runGuests builds the tests that need IPVS, runs them in guests, and enters into the summary how it went. There are as
// many guests as processors, because only a guest with a single one is never late (vipd/test/guest/vm).
func runGuests(p plan, s *summary) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := func() error {
		folder, err := os.MkdirTemp("", "vipd-report-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		o, err := build(ctx, p, folder)
		if err != nil {
			return err
		}
		file, err := o.save(folder)
		if err != nil {
			return err
		}
		s.expect(o.Pieces, where)
		errs := make([]error, min(runtime.NumCPU(), guestsAtMost, len(o.Pieces)))
		var running sync.WaitGroup
		for i := range errs {
			running.Go(func() { errs[i] = boot(ctx, i+1, folder, file, o.Queue, s) })
		}
		running.Wait()
		return errors.Join(errs...)
	}()
	if err != nil {
		s.broke("the tests that need IPVS", err.Error())
		return
	}
	for _, k := range p.guest {
		if !s.ended(k.path, where) {
			s.broke(k.path, "its tests have not ended")
		}
	}
}

// build builds the tests, and what turns their output into events, outside: in there it would take minutes. It does
// not ask for the race detector, which would make emulated code slower once more: the same code runs under it outside.
func build(ctx context.Context, p plan, folder string) (orders, error) {
	o := orders{
		Test2JSON: filepath.Join(folder, "test2json"), Limit: testLimit, Parallel: guestParallel, Queue: filepath.Join(folder, "queue"),
		Packages: map[string]order{}, Pieces: cut(paths(p.guest), cmp.Or(flagOf(p.flags, "run"), ipvsTests), long()),
	}
	if err := os.Mkdir(o.Queue, 0o755); err != nil {
		return o, err
	}
	if value := flagOf(p.flags, "count"); value != "" {
		o.Flags = append(o.Flags, "-test.count="+value)
	}
	if err := goRun(ctx, "build", "-o", o.Test2JSON, "cmd/test2json"); err != nil {
		return o, err
	}
	for i, k := range p.guest {
		binary := filepath.Join(folder, strconv.Itoa(i)+".test")
		if err := goRun(ctx, "test", "-c", "-ldflags=-w", "-o", binary, k.path); err != nil {
			return o, err
		}
		o.Packages[k.path] = order{k.folder, binary}
	}
	return o, nil
}

func goRun(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the programs are built, so that their packages are compiled already
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// boot runs this program in a guest of that number, with the orders of a file, and reads what it has to tell.
func boot(ctx context.Context, number int, folder, file, queue string, s *summary) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	events, w := io.Pipe()
	read := make(chan error, 1)
	go func() { read <- s.read(events, where) }()
	status, err := vm.Run(ctx, vm.Options{
		Limit: guestLimit, Stdout: w, Stderr: os.Stderr, Writable: queue, Env: []string{program.BinVar + "=" + os.Getenv(program.BinVar)},
		Log: func(format string, args ...any) { fmt.Printf("guest %d: %s\n", number, fmt.Sprintf(format, args...)) },
	}, self, insideFlag, file)
	_ = w.Close()
	if readErr := <-read; err == nil {
		err = readErr
	}
	if err == nil && status != 0 && s.failed() == 0 {
		err = errors.New("the guest's part of this program failed with status " + strconv.Itoa(status))
	}
	return err
}
