package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"vipd/test/guest/vm"
)

const usage = `usage: guest [-c CPUS] [-m MIB] [-t LIMIT] [-w FOLDER] [--] COMMAND [ARGUMENT ...]

Runs a command as root in a throw-away virtual machine whose kernel has IPVS, on this machine's files: what the
command changes is lost, except below FOLDER. Exit status: that of the command; 124 at the time limit; 125 when the
guest fails; 2 for wrong use.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, command, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	o.Stdout, o.Stderr = stdout, stderr
	o.Log = func(format string, args ...any) { _, _ = fmt.Fprintf(stderr, "guest: "+format+"\n", args...) }
	status, err := vm.Run(ctx, o, command...)
	if err == nil {
		return status
	}
	_, _ = fmt.Fprintln(stderr, "guest:", err)
	if errors.Is(err, vm.ErrLimit) {
		return 124
	}
	return 125
}

// parse reads the command line, and prints its mistakes to stderr.
func parse(args []string, stderr io.Writer) (vm.Options, []string, error) {
	var o vm.Options
	flags := flag.NewFlagSet("guest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = io.WriteString(stderr, usage)
		flags.PrintDefaults()
	}
	flags.IntVar(&o.CPUs, "c", 1, "how many `processors` the guest has; with one, it counts its time by what it executes")
	flags.IntVar(&o.Memory, "m", 2048, "how much memory it has, in `MiB`")
	flags.DurationVar(&o.Limit, "t", 5*time.Minute, "the `limit` of boot and command together, such as 90s")
	flags.StringVar(&o.Writable, "w", "", "a `folder` whose files the command may change for good")
	if err := flags.Parse(args); err != nil {
		return o, nil, err
	}
	var wrong string
	switch {
	case flags.NArg() == 0:
		wrong = "which command?"
	case o.CPUs < 1:
		wrong = "-c: a guest has at least one processor"
	case o.Memory < 256:
		wrong = "-m: less than 256 MiB are too few"
	case o.Limit <= 0:
		wrong = "-t: no time at all"
	}
	if wrong != "" {
		_, _ = fmt.Fprintln(stderr, "guest:", wrong)
		flags.Usage()
		return o, nil, errors.New(wrong)
	}
	return o, flags.Args(), nil
}
