package cli

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/internal/version"
	"vipd/store/etcd"
)

// World is a process's environment: its streams, its clock and its privileges.
type World struct {
	// These are the process's streams and clock.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	// Root reports whether this process has root's privileges. It is always true on systems other
	// than Linux.
	Root bool
	// OutTerminal and ErrTerminal report whether the streams are terminals. Color reports whether
	// output to stdout may have colors.
	OutTerminal, ErrTerminal, Color bool
	// Width is the width in columns of the terminal on stdout, or 0 if stdout is not a terminal.
	Width int
}

// Call is one invocation of a verb.
type Call struct {
	context.Context
	*Printer
	// Flags holds the values of the verb's flags.
	Flags *urfave.Context
	// Args are the arguments after the verb.
	Args []string
	// Verb is the verb that is running.
	Verb *Verb
	// verbs lists all of the program's verbs.
	verbs []*Verb
	// Daemon is the connection to this host's daemon, and Writer is the connection to etcd. They
	// are nil until [Call.Client] and [Call.Etcd] are called. Members lists etcd's URLs.
	Daemon  *api.Client
	Writer  *etcd.Store
	Members []string
	// socketWins reports whether a --socket flag on the command line overrides an etcd address from
	// the environment.
	socketWins bool
}

func newCall(ctx context.Context, w World, all []*Verb, l *commandLine) *Call {
	c := &Call{Context: ctx, verbs: all, Printer: &Printer{World: w}, Flags: l.Flags, Args: l.Args, Verb: l.Verb, socketWins: l.SocketWins}
	c.FleetWide = c.NamesEtcd()
	return c
}

// prepare performs the checks that all verbs share: the output format and the number of arguments.
func (c *Call) prepare() (err error) {
	if len(c.Verb.Formats) > 0 {
		if err = c.choose(c.Verb, c.Flags.String("output")); err != nil {
			return err
		}
	}
	if c.Verb.SpellOut != nil {
		c.Args = c.Verb.SpellOut(c.Args)
	}
	return c.Verb.counted(c.Args)
}

func (c *Call) close() {
	if c.Daemon != nil {
		c.Daemon.Close()
	}
	if c.Writer != nil {
		_ = c.Writer.Close() // all requests were already answered
	}
}

// Argument returns argument n, or "" if there are not that many arguments.
func (c *Call) Argument(n int) string {
	if n < len(c.Args) {
		return c.Args[n]
	}
	return ""
}

// verbText returns the verb as typed. It includes the kind of object, because "vipctl get" needs
// etcd only for some kinds of objects.
func (c *Call) verbText() string {
	text := "vipctl " + c.Verb.Name
	if c.Verb.SpellOut != nil {
		text = strings.TrimSpace(text + " " + c.Argument(0))
	}
	return text
}

// AskDaemon calls question with a client of this host's daemon. question may be a method, such as
// (*api.Client).Status.
func AskDaemon[T any](c *Call, question func(*api.Client, context.Context) (T, error)) (answer T, err error) {
	client, err := c.Client()
	if err == nil {
		answer, err = question(client, c)
	}
	return answer, err
}

// AskEtcd calls question with a client of etcd. question may be a method, such as
// (*etcd.Store).Pools.
func AskEtcd[T any](c *Call, question func(*etcd.Store, context.Context) (T, error)) (answer T, err error) {
	w, err := c.Etcd()
	if err == nil {
		answer, err = question(w, c)
	}
	return answer, err
}

// Traced wraps run in a span if the configuration names a trace receiver. The span is a child of
// the span in the environment variable TRACEPARENT, which CI pipelines set. Without a receiver,
// TRACEPARENT is passed on unchanged.
func Traced(run func(*Call) error) func(*Call) error {
	return func(c *Call) error {
		var part struct {
			Tracing config.Tracing `toml:"tracing"`
		}
		_ = readPart(c.Flags.String("config"), &part) // the daemon reports mistakes in the file
		o := tracing.Options{Endpoint: part.Tracing.OTLPEndpoint, Version: version.Version, Log: slog.New(slog.DiscardHandler)}
		o.Node, _ = os.Hostname() // a span without a name is still useful
		ctx, end := tracing.Command(c.Context, o, c.verbText(), c.Getenv("TRACEPARENT"))
		c.Context = ctx
		err := run(c)
		end(err)
		return err
	}
}
