package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"

	"vipd/test/program"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == insideFlag {
		os.Exit(inside(os.Args[2], os.Stdout))
	}
	ok, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "report: %v\n", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// run runs the tests and prints the report. It returns false if something failed.
func run(args []string) (bool, error) {
	p, err := newPlan(args)
	if err != nil {
		return false, err
	}
	if p.packages == nil {
		fmt.Println("no package has such tests")
		return true, nil
	}
	if p.note != "" {
		fmt.Println(p.note)
	}
	if os.Getenv("GORACE") == "" { // otherwise each process with the race detector sleeps for a second before it exits
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			return false, err
		}
	}
	if err := program.BuildAll(context.Background(), "build/test"); err != nil {
		return false, err
	}
	s := newSummary(os.Stdout)
	readErr, waitErr := runAll(p, s)
	if p.again && readErr == nil && testsFailed(waitErr) && s.rerunFailing(p, func(only plan, alone *summary) error { return errors.Join(runAll(only, alone)) }) {
		waitErr = nil
	}
	s.print(waitErr)
	return waitErr == nil && s.failed() == 0, readErr
}

// testsFailed reports whether go test completed, with or without failing tests.
func testsFailed(waitErr error) bool {
	exit, ok := errors.AsType[*exec.ExitError](waitErr)
	return waitErr == nil || ok && exit.ExitCode() == 1
}

// runAll runs the tests of a plan, here and in the guest at the same time. The second error is go
// test's.
func runAll(p plan, s *summary) (readErr, waitErr error) {
	var guest sync.WaitGroup
	if p.guest != nil { // the guest is slowest, so its tests are built first and run concurrently with the others
		folder, err := os.MkdirTemp("", "vipd-report-")
		if err != nil {
			return err, nil
		}
		defer func() { _ = os.RemoveAll(folder) }()
		if o, err := build(context.Background(), p, folder); err != nil {
			s.broke(needIPVS, err.Error())
		} else {
			guest.Go(func() { runGuest(p, o, s) })
		}
	}
	if p.here {
		readErr, waitErr = runHere(p, s)
	}
	guest.Wait()
	return readErr, waitErr
}

// packagesAtOnce is the minimum number of packages that go test runs at once. testsAtOnce is the
// minimum number of parallel tests in a package. Both may exceed the number of CPUs, because tests
// mostly wait.
const packagesAtOnce, testsAtOnce = 4, 4

// runHere runs go test. The second error is go test's.
func runHere(p plan, s *summary) (readErr, waitErr error) {
	atOnce := []string{ // flags on the command line follow, and override these flags
		fmt.Sprintf("-p=%d", max(packagesAtOnce, runtime.GOMAXPROCS(0))), fmt.Sprintf("-parallel=%d", max(testsAtOnce, runtime.GOMAXPROCS(0))),
	}
	cmd := exec.Command("go", slices.Concat([]string{"test", "-json"}, atOnce, p.flags, p.packages)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting go test: %w", err)
	}
	readErr = s.read(events, "")
	return readErr, cmd.Wait()
}

// flagOf returns the value of a go test flag in the form -NAME=VALUE, or "".
func flagOf(flags []string, name string) string {
	for _, f := range slices.Backward(flags) {
		if value, ok := strings.CutPrefix(strings.TrimPrefix(f, "-"), "-"+name+"="); ok {
			return value
		}
		if value, ok := strings.CutPrefix(f, "-"+name+"="); ok {
			return value
		}
	}
	return ""
}
