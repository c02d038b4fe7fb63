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
	"strconv"
	"strings"
	"syscall"
	"time"

	"vipd/test/guest/vm"
	"vipd/test/program"
)

const (
	// guestLimit is the maximum duration of a guest. On an idle machine, all tests need a tenth of
	// it.
	guestLimit = 75 * time.Minute
	// testLimit is the maximum duration of the tests in the guest, which then report where they
	// hang. It uses the guest's clock, on which a minute may last several minutes.
	testLimit = 15 * time.Minute
	// guestParallel is the number of concurrent test processes in the guest. Tests spend half of
	// their time waiting.
	guestParallel = 2
)

// where is how the report names the guest, and needIPVS is how it names the guest's tests.
const where, needIPVS = "in the guest", "the tests that need IPVS"

// runGuest runs the tests that need IPVS in a guest, and adds the results to the summary. It uses
// one guest, because a boot costs a tenth of the tests' time.
func runGuest(p plan, o orders, s *summary) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s.expect(o.Pieces, where)
	file, err := o.save(filepath.Dir(o.Test2JSON))
	if err == nil {
		err = boot(ctx, file, s)
	}
	if err != nil {
		s.broke(needIPVS, err.Error())
		return
	}
	for _, k := range p.guest {
		if !s.ended(k.path, where) {
			s.broke(k.path, "its tests have not ended")
		}
	}
}

// build builds the tests, and the program that converts their output into events. It runs outside
// the guest, because a build in the guest would last minutes. It omits the race detector, which
// would make emulated code even slower. The same code runs with the race detector outside the
// guest.
func build(ctx context.Context, p plan, folder string) (orders, error) {
	o := orders{
		Test2JSON: filepath.Join(folder, "test2json"), Limit: testLimit, Parallel: guestParallel,
		Packages: map[string]order{}, Pieces: cut(paths(p.guest), cmp.Or(flagOf(p.flags, "run"), ipvsTests), long()),
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
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the programs are built in the same way, so their packages are already compiled
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// boot runs this program in a guest with orders from a file, and reads its results.
func boot(ctx context.Context, file string, s *summary) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	events, w := io.Pipe()
	read := make(chan error, 1)
	go func() { read <- s.read(events, where) }()
	status, err := vm.Run(ctx, vm.Options{
		Limit: guestLimit, Stdout: w, Stderr: os.Stderr, Env: []string{program.BinVar + "=" + os.Getenv(program.BinVar)},
		Log: func(format string, args ...any) { fmt.Printf("guest: %s\n", fmt.Sprintf(format, args...)) },
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
