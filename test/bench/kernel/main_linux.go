package main

import (
	"context"
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

// start runs the program in the role that roleVar names.
func start(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	switch os.Getenv(roleVar) {
	case boxRole:
		return serve(ctx, os.Stdin, os.Stdout)
	case senderRole:
		if err := setUp(); err != nil {
			return err
		}
		return bench(ctx, args)
	}
	o, err := parse(args) // report wrong flags before anything starts
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		fmt.Println("not measured: the kernel's paths (needs root: makes network namespaces)")
		return nil
	}
	if o.ipvs && !hasIPVS() {
		return inGuest(ctx, o, args)
	}
	if emulated() {
		if err := preferSoftirqs(); err != nil {
			return err
		}
	}
	runtime.LockOSThread() // child processes are killed when the thread that started them exits
	cmd, err := apart(ctx, senderRole, args...)
	if err != nil {
		return err
	}
	cmd.Stdout = os.Stdout
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	err = cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok || ctx.Err() != nil {
		return errors.New("ended early") // the reason was printed
	}
	return err
}

// options is the parsed command line.
type options struct {
	quick bool
	// ipvs selects the table of ipvs mode. full selects all its rows.
	ipvs, full bool
	only       *regexp.Regexp
	plot       string // the file for the plot, or ""
}

func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("kernel", flag.ContinueOnError)
	flags.BoolVar(&o.quick, "quick", false, "small numbers, to see that it runs")
	flags.BoolVar(&o.ipvs, "ipvs", false, "measure ipvs mode, beside ipvsadm and the rules of iptables mode; in a guest where this kernel has no IPVS")
	flags.BoolVar(&o.full, "full", false, "with -ipvs: longer lists, and larger loads by ipvsadm (an hour in a guest)")
	only := flags.String("only", "", "a regular expression: only the rows that it matches, and those they are compared with")
	flags.StringVar(&o.plot, "plot", "", "write the costs of first packets to `FILE` as an SVG image")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.full && (!o.ipvs || o.quick) {
		return o, errors.New("-full goes with -ipvs, and not with -quick")
	}
	o.only, err = regexp.Compile(*only)
	return o, err
}

// table returns the requested rows and columns, and the amount of work for each figure.
func (o options) table() ([]row, []backend, effort, error) {
	e, columns := fullEffort(), backends()
	if o.quick {
		e = quickEffort()
	}
	var rows []row
	switch {
	case o.ipvs && o.quick:
		rows, columns = ipvsPlan(quickIPVSSizes()), []backend{ipvsBackend}
	case o.ipvs:
		rows, columns = ipvsPlan(fullIPVSSizes(o.full)), []backend{ipvsBackend}
	case o.quick:
		rows = plan(quickSizes())
	default:
		rows = plan(fullSizes())
	}
	if o.ipvs {
		if err := loadIPVS(); err != nil {
			return nil, nil, e, err
		}
		if emulated() {
			e = e.emulated()
		}
	}
	if rows = chosen(rows, o.only); len(rows) == 0 {
		return nil, nil, e, fmt.Errorf("no row has a name like %q", o.only)
	}
	return rows, columns, e, nil
}

// bench runs and prints the measurements that the command line requests.
func bench(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	rows, columns, e, err := o.table()
	if err != nil {
		return err
	}
	var all []figure
	for _, b := range columns {
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
	printTable(os.Stdout, columns, rows, all)
	if o.plot != "" {
		if err := plotTo(o.plot, rows, all); err != nil {
			return err
		}
	}
	if over := slices.DeleteFunc(slices.Clone(all), func(f figure) bool { return f.Within }); len(over) > 0 {
		fmt.Printf("\n%d figures are over their bounds: those in bold type.\n", len(over))
	}
	return nil
}

// tools returns the reason why a backend can't be used, or nil.
func tools(b backend) error {
	for _, tool := range []string{"", "-restore", "-save"} {
		if _, err := exec.LookPath(fmt.Sprintf("iptables-%s%s", b, tool)); err != nil {
			return err
		}
	}
	return nil
}
