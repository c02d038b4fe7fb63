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

// Exit codes. Go's runtime ends a program that panics with 2 as well.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
	// exitConfig is sysexits' EX_CONFIG: to start again is of no use before the configuration is mended.
	exitConfig = 78
)

// garbagePercent is how much may be thrown away, against what is in use, before memory is collected, unless GOGC says
// otherwise: half of Go's usual. vipd rests most of the time, so that its memory costs a host more than its collections.
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

// serviceVerb is the first argument of a vipd that the service manager of Windows starts.
const serviceVerb = "service"

// arguments are the command line.
type arguments struct {
	config, mode, level, format  string
	version, allowEmpty, replace bool
}

// run parses the command line, runs the daemon until a signal or the end of ctx ends it, and returns the exit code.
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
			fmt.Fprintf(stderr, "%s%s\n", prefix, strings.TrimSpace(line)) // in one write, which is one entry of a log
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
	hangups := make(chan os.Signal, 1) // before anything else: an early one must not end the program
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
	daemon.TellStatus(err.Error()) // systemctl status shows it also when systemd has given up, and the log of this process no more
	if errors.Is(err, daemon.ErrConfig) {
		return exitConfig
	}
	return exitFailed
}

func parse(args []string, stdout io.Writer) (arguments, error) {
	var a arguments
	f := flag.NewFlagSet("vipd", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, by run
	f.StringVar(&a.config, "config", config.DefaultFile, "`FILE` to read")
	f.StringVar(&a.mode, "mode", "", "`MODE` that wins over the configuration's: "+strings.Join(config.ModeName("").Values(), ", "))
	f.BoolVar(&a.allowEmpty, "allow-empty", false, "accept an empty configuration even if services were running")
	f.BoolVar(&a.replace, "replace", false, "take the place of the vipd that runs with this run_dir, and its connections in userspace mode")
	f.StringVar(&a.level, "log-level", "info", "least `LEVEL` to log: debug, info, warn, error")
	f.StringVar(&a.format, "log-format", "text", "`FORMAT` of the log: text or json")
	f.BoolVar(&a.version, "version", false, "print the version and exit")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, "vipd serves virtual IPs as its configuration says.\n\nFlags:\n")
		f.VisitAll(func(one *flag.Flag) { describe(stdout, one) })
		return a, err
	}
	if err != nil {
		const unknown = "flag provided but not defined: "
		if flag, is := strings.CutPrefix(err.Error(), unknown); is { // with one dash, however it was typed
			if len(flag) > len("-c") {
				flag = "-" + flag
			}
			return a, fmt.Errorf("there is no flag %s; see vipd --help", flag)
		}
		return a, fmt.Errorf("%w; see vipd --help", err)
	}
	if f.NArg() > 0 {
		return a, fmt.Errorf("unexpected argument %q: vipd takes only flags; see vipd --help", f.Arg(0))
	}
	if a.mode != "" && !slices.Contains(config.ModeName("").Values(), a.mode) {
		return a, fmt.Errorf("--mode %q is unknown; possible are %s", a.mode, strings.Join(config.ModeName("").Values(), ", "))
	}
	return a, nil
}

// describe writes a flag as it is usually typed, with two dashes.
func describe(out io.Writer, f *flag.Flag) {
	value, usage := flag.UnquoteUsage(f)
	name := strings.TrimSpace("--" + f.Name + " " + value)
	if f.DefValue != "" && f.DefValue != "false" {
		usage += " (default " + f.DefValue + ")"
	}
	fmt.Fprintf(out, "  %-20s %s\n", name, usage)
}

// endBySignal returns a context that the first signal ends, and one that the second one ends. From then on signals have their default: a
// third one ends the program at once.
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

// reloadOn reloads at each hangup until ctx ends.
func reloadOn(ctx context.Context, hangups <-chan os.Signal, d *daemon.Daemon) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			_, _ = d.Reload(ctx, "SIGHUP", tomlfile.Reload{}) // it is in the journal, and so in the log
		}
	}
}
