package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

func main() {
	if err := start(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kernel:", err)
		os.Exit(1)
	}
}

// start is the program in the role that it was started in.
func start(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	switch os.Getenv(roleVar) {
	case boxRole:
		return serve(ctx, os.Stdin, os.Stdout)
	case senderRole:
		if err := furnish(); err != nil {
			return err
		}
		return bench(ctx, args)
	}
	if _, err := parse(args); err != nil { // before anything is started
		return err
	}
	if os.Geteuid() != 0 {
		fmt.Println("not measured: the kernel's paths (needs root: makes network namespaces)")
		return nil
	}
	runtime.LockOSThread() // what is started ends with the thread that did it
	cmd, err := apart(ctx, senderRole, args...)
	if err != nil {
		return err
	}
	cmd.Stdout = os.Stdout
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) || ctx.Err() != nil {
		return errors.New("ended early") // it has said why
	}
	return err
}

// options are the command line.
type options struct {
	quick bool
	only  *regexp.Regexp
	json  string
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("kernel", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "small numbers, to see that it runs")
	only := flags.String("only", "", "a regular expression: only the rows that it matches, and those they are compared with")
	flags.StringVar(&o.json, "json", "", "a file to write the figures to")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	o.only, err = regexp.Compile(*only)
	return o, err
}

// bench measures what the command line asks for, and prints it.
func bench(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	s, e := fullSizes(), fullEffort()
	if o.quick {
		s, e = quickSizes(), quickEffort()
	}
	rows := chosen(plan(s), o.only)
	if len(rows) == 0 {
		return fmt.Errorf("no row has a name like %q", o.only)
	}
	var all []figure
	for _, b := range backends() {
		if missing := tools(b); missing != nil {
			fmt.Printf("not measured: %s (%v)\n", b, missing)
			continue
		}
		values, err := run(ctx, b, rows, e, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
		if err != nil {
			return err
		}
		all = append(all, figures(rows, b, values)...)
	}
	printTable(os.Stdout, rows, all)
	if over := slices.DeleteFunc(slices.Clone(all), func(f figure) bool { return f.Within }); len(over) > 0 {
		fmt.Printf("\n%d figures are over their bounds: those in bold type.\n", len(over))
	}
	if o.json == "" {
		return nil
	}
	text, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(text, '\n'), 0o644)
}

// tools returns why a backend can't be used; nil: it can.
func tools(b backend) error {
	for _, tool := range []string{"", "-restore", "-save"} {
		if _, err := exec.LookPath(fmt.Sprintf("iptables-%s%s", b, tool)); err != nil {
			return err
		}
	}
	return nil
}
