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
	// guestLimit ends a guest that hangs. On a quiet machine all tests take it a tenth of that.
	guestLimit = 75 * time.Minute
	// testLimit ends the tests in it, so that they say what they were at. It is of the guest's own time, of which a minute
	// may take several.
	testLimit = 15 * time.Minute
	// guestParallel is how many test processes run in it at once: tests wait half of their time.
	guestParallel = 2
)

// where names the guest in the report, needIPVS all that runs in it.
const where, needIPVS = "in the guest", "the tests that need IPVS"

// runGuest runs the tests that need IPVS in a guest, and enters into the summary how it went. It is one guest, as a boot costs
// as much as a tenth of its tests.
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

// build builds the tests, and what turns their output into events, outside: in there it would take minutes. It does
// not ask for the race detector, which would make emulated code slower once more: the same code runs under it outside.
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
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the programs are built, so that their packages are compiled already
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// boot runs this program in a guest, with the orders of a file, and reads what it has to tell.
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
