package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/programs"
	"vipd/cmd/internal/version"
	"vipd/cmd/vipd/daemon"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// garbagePercent is how much may be thrown away, against what is in use, before memory is collected, unless GOGC says
// otherwise: half of Go's usual. vipd rests most of the time, so that its memory costs a host more than its collections.
const garbagePercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	programs.AddFolders()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// arguments are the command line.
type arguments struct {
	config, mode, level, format string
	version                     bool
}

// run parses the command line, runs the daemon until a signal ends it, and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	a, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		fmt.Fprintf(stderr, "vipd: %v\n", err)
		return exitUsage
	case a.version:
		fmt.Fprintf(stdout, "vipd %s\n", version.Current())
		return exitDone
	}
	log, err := newLog(stderr, a.level, a.format)
	if err != nil {
		fmt.Fprintf(stderr, "vipd: %v\n", err)
		return exitUsage
	}
	// A second signal ends the program at once: the first one gives signals back to their default.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, stop)
	hangups := make(chan os.Signal, 1) // before anything else: an early one must not end the program
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	d, err := daemon.New(daemon.Options{
		ConfigFile: a.config, Mode: config.ModeName(a.mode), Log: log, Version: version.Version, Modes: modes.All(),
	})
	if err == nil {
		go reloadOn(ctx, hangups, d)
		err = d.Run(ctx)
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(stderr, "vipd: %s\n", strings.TrimSpace(line))
		}
		return exitFailed
	}
	return exitDone
}

func parse(args []string, stdout io.Writer) (arguments, error) {
	var a arguments
	f := flag.NewFlagSet("vipd", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, by run
	f.StringVar(&a.config, "config", config.DefaultFile, "`FILE` to read")
	f.StringVar(&a.mode, "mode", "", "`MODE` that wins over the configuration's: "+strings.Join(config.ModeName("").Values(), ", "))
	f.StringVar(&a.level, "log-level", "info", "least `LEVEL` to log: debug, info, warn, error")
	f.StringVar(&a.format, "log-format", "text", "`FORMAT` of the log: text or json")
	f.BoolVar(&a.version, "version", false, "print the version and exit")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, "vipd serves virtual IPs as its configuration says.\n\nFlags:\n")
		f.SetOutput(stdout)
		f.PrintDefaults()
		return a, err
	}
	if err != nil {
		return a, fmt.Errorf("%w; see vipd --help", err)
	}
	if f.NArg() > 0 {
		return a, fmt.Errorf("%q is surplus: vipd takes flags only; see vipd --help", f.Arg(0))
	}
	if a.mode != "" && !slices.Contains(config.ModeName("").Values(), a.mode) {
		return a, fmt.Errorf("--mode %q is unknown; possible are %s", a.mode, strings.Join(config.ModeName("").Values(), ", "))
	}
	return a, nil
}

func newLog(to io.Writer, level, format string) (*slog.Logger, error) {
	var o slog.HandlerOptions
	switch level {
	case "debug":
		o.Level = slog.LevelDebug
	case "info":
		o.Level = slog.LevelInfo
	case "warn":
		o.Level = slog.LevelWarn
	case "error":
		o.Level = slog.LevelError
	default:
		return nil, fmt.Errorf("--log-level %q is unknown; possible are debug, info, warn, error", level)
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(to, &o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(to, &o)), nil
	}
	return nil, fmt.Errorf("--log-format %q is unknown; possible are text, json", format)
}

// reloadOn reloads at each hangup until ctx ends.
func reloadOn(ctx context.Context, hangups <-chan os.Signal, d *daemon.Daemon) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			_, _ = d.Reload(ctx, "SIGHUP") // it is in the journal, and so in the log
		}
	}
}
