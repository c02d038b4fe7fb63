package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/execpath"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/version"
	"vipd/cmd/vipd/daemon"
	"vipd/store/tomlfile"
)

// These are the exit codes. Go's runtime also exits with 2 after a panic.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	// exitConfig is EX_CONFIG in sysexits.h. A restart fails until the configuration is fixed.
	exitConfig = 78
)

// garbagePercent is vipd's default for GOGC, half of Go's default. vipd is mostly idle, so memory
// costs a host more than garbage collections.
const garbagePercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	execpath.AddFolders()
	switch {
	case len(os.Args) > 1 && os.Args[1] == ownerVerb:
		os.Exit(runOwner(os.Args[2:], os.Stdout, os.Stderr))
	case len(os.Args) > 1 && os.Args[1] == serviceVerb:
		os.Exit(runService(os.Args[2:], os.Stderr))
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// serviceVerb is the first argument of a vipd that the Windows service manager starts.
const serviceVerb = "service"

// arguments represents the command line.
type arguments struct {
	config, mode, level, format  string
	version, allowEmpty, replace bool
}

// run parses the command line, runs the daemon until a signal arrives or ctx is done, and returns
// the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	journal := isJournal(stderr)
	prefix := "vipd: "
	if journal {
		prefix = priorityError + prefix
	}
	queue := startLogQueue(stderr, stalledAfter)
	defer queue.end()
	stderr = queue
	complain := func(err error) {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "%s%s\n", prefix, strings.TrimSpace(line)) // in one write, which makes one log entry
		}
	}
	a, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		complain(err)
		return exitUsage
	case a.version:
		fmt.Fprintf(stdout, "vipd %s\n", version.Current())
		return exitDone
	}
	log, err := queue.log(journal, a.level, a.format)
	if err != nil {
		complain(err)
		return exitUsage
	}
	ctx, hurry, done := endBySignal(ctx)
	defer done()
	hangups := make(chan os.Signal, 1) // before everything else, because an early hangup must not end the program
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	d, err := daemon.New(daemon.Options{
		ConfigFile: a.config, Mode: config.ModeName(a.mode), AllowEmpty: a.allowEmpty, Replace: a.replace, Hurry: hurry, Log: log, Version: version.Version, Modes: modes.All(),
	})
	if err == nil {
		go reloadOn(ctx, hangups, d)
		err = d.Run(ctx)
	}
	if err == nil {
		return exitDone
	}
	complain(err)
	daemon.SetStatus(err.Error()) // systemctl status still shows it after systemd has given up and the log has rotated
	if errors.Is(err, daemon.ErrConfig) {
		return exitConfig
	}
	return exitFailed
}

func parse(args []string, stdout io.Writer) (arguments, error) {
	var a arguments
	f := flag.NewFlagSet("vipd", flag.ContinueOnError)
	f.SetOutput(io.Discard) // run prints the error once
	f.StringVar(&a.config, "config", config.DefaultFile, "read the configuration from `FILE`")
	f.StringVar(&a.mode, "mode", "", "use this `MODE` instead of the configuration's: "+strings.Join(config.ModeName("").Values(), ", "))
	f.BoolVar(&a.allowEmpty, "allow-empty", false, "accept an empty configuration even if services were running")
	f.BoolVar(&a.replace, "replace", false, "replace the running vipd that uses this run_dir, and keep its userspace connections open")
	f.StringVar(&a.level, "log-level", "info", "log messages of `LEVEL` and above: debug, info, warn, error")
	f.StringVar(&a.format, "log-format", "text", "write the log in `FORMAT`: text or json")
	f.BoolVar(&a.version, "version", false, "print the version and exit")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, "vipd serves virtual IPs according to its configuration.\n\nFlags:\n")
		f.VisitAll(func(one *flag.Flag) { describe(stdout, one) })
		return a, err
	}
	if err != nil {
		const unknown = "flag provided but not defined: "
		if flag, ok := strings.CutPrefix(err.Error(), unknown); ok { // with one dash, whichever form was typed
			if len(flag) > len("-c") {
				flag = "-" + flag
			}
			return a, fmt.Errorf("there is no flag %s; see vipd --help", flag)
		}
		return a, fmt.Errorf("%w; see vipd --help", err)
	}
	if f.NArg() > 0 {
		return a, fmt.Errorf("unexpected argument %q: vipd accepts only flags; see vipd --help", f.Arg(0))
	}
	if a.mode != "" && !slices.Contains(config.ModeName("").Values(), a.mode) {
		return a, fmt.Errorf("--mode %q is unknown; the modes are %s", a.mode, strings.Join(config.ModeName("").Values(), ", "))
	}
	return a, nil
}

// describe prints a flag in its usual form, with two dashes.
func describe(out io.Writer, f *flag.Flag) {
	value, usage := flag.UnquoteUsage(f)
	name := strings.TrimSpace("--" + f.Name + " " + value)
	if f.DefValue != "" && f.DefValue != "false" {
		usage += " (default " + f.DefValue + ")"
	}
	fmt.Fprintf(out, "  %-20s %s\n", name, usage)
}

// endBySignal returns two contexts: the first signal ends ctx, and the second ends hurry. Later
// signals have their default effect, so a third signal ends the program immediately.
func endBySignal(parent context.Context) (ctx, hurry context.Context, done func()) {
	ctx, stop := context.WithCancel(parent)
	hurry, cancel := context.WithCancel(context.WithoutCancel(parent))
	signals, over := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		defer signal.Stop(signals)
		for _, end := range []func(){stop, cancel} {
			select {
			case <-signals:
				end()
			case <-over:
				return
			}
		}
	}()
	return ctx, hurry, func() { close(over); stop(); cancel() }
}

// reloadOn reloads the configuration at each SIGHUP until ctx is done.
func reloadOn(ctx context.Context, hangups <-chan os.Signal, d *daemon.Daemon) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			_, _ = d.Reload(ctx, "SIGHUP", tomlfile.Reload{}) // the result is recorded in the history, and so in the log
		}
	}
}
