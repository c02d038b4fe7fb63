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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintf(os.Stderr, "echo: %v\n", err)
		os.Exit(1)
	}
}

// run parses args and serves until ctx is done. It then prints the counts to out.
func run(ctx context.Context, args []string, out, errs io.Writer) error {
	var s server
	flags := flag.NewFlagSet("echo", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // main prints the error
	flags.StringVar(&s.name, "name", "echo", "include `NAME` in answers")
	flags.StringVar(&s.http, "http", "", "serve HTTP on `ADDRESS:PORT`")
	flags.StringVar(&s.tcp, "tcp", "", "serve raw TCP on `ADDRESS:PORT`")
	flags.StringVar(&s.udp, "udp", "", "serve UDP on `ADDRESS:PORT`")
	flags.DurationVar(&s.grace, "grace", 5*time.Second, "how long a graceful stop waits for open connections")
	countFile := flags.String("count-file", "", "keep the counts in `FILE`, which survives even a kill -9")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(errs)
			flags.PrintDefaults()
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag; see --help", flags.Arg(0))
	}
	if s.http == "" && s.tcp == "" && s.udp == "" {
		return errors.New("nothing to serve: set at least one of --http, --tcp and --udp")
	}
	if *countFile != "" {
		f, err := os.Create(*countFile)
		if err != nil {
			return fmt.Errorf("opening the count file: %w", err)
		}
		defer func() { _ = f.Close() }()
		s.counts.file = f
	}
	if err := s.listen(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: serving http=%s tcp=%s udp=%s\n", s.name, s.http, s.tcp, s.udp)
	err := s.serve(ctx)
	fmt.Fprintf(out, "%s: %s", s.name, s.counts.text())
	return err
}
