package main

import (
	"cmp"
	"context"
	"encoding/json"
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
	// guestLimit ends a guest that takes too long. Alone on a quiet machine it should take a quarter of that.
	guestLimit = 40 * time.Minute
	// guestParallel is how many test processes run in it at once. It has two processors, and tests wait half of their time.
	guestParallel = 3
	// bootTime is what of it is left for the boot, and for the tests to say what they were at.
	bootTime = time.Minute
)

// where names the guest in the report.
const where = "in the guest"

// runGuest builds the tests that need IPVS, runs them in one guest, and enters into the summary how it went.
func runGuest(p plan, s *summary) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := func() error {
		folder, err := os.MkdirTemp("", "vipd-report-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		if err := goRun(ctx, "build", "-buildvcs=false", "-o", folder+"/", "vipd/cmd/vipd", "vipd/cmd/vipctl"); err != nil {
			return err
		}
		o, err := build(ctx, p, folder)
		if err != nil {
			return err
		}
		return boot(ctx, o, folder, s)
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
		Test2JSON: filepath.Join(folder, "test2json"), Limit: guestLimit - bootTime, Parallel: guestParallel,
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
		if err := goRun(ctx, "test", "-c", "-o", binary, k.path); err != nil {
			return o, err
		}
		o.Packages[k.path] = order{k.folder, binary}
	}
	return o, nil
}

func goRun(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// boot runs this program in the guest, and reads what it has to tell.
func boot(ctx context.Context, o orders, folder string, s *summary) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "orders")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	events, w := io.Pipe()
	read := make(chan error, 1)
	go func() { read <- s.read(events, where) }()
	status, err := vm.Run(ctx, vm.Options{
		Limit: guestLimit, Stdout: w, Stderr: os.Stderr, Env: []string{program.BinVar + "=" + folder},
		Log: func(format string, args ...any) { fmt.Printf("guest: "+format+"\n", args...) },
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
