package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/tracing"
	"vipd/cmd/internal/version"
	"vipd/store/etcd"
)

// world is what this process was given.
type world struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	now            func() time.Time
	// root: this process may do what takes root, as far as there is such a thing on this system.
	root bool
	// outTerminal and errTerminal: the stream is a terminal; color: stdout may have colours.
	outTerminal, errTerminal, color bool
	// width is how many columns the terminal has that stdout is; 0 means it is none.
	width int
}

// call is one run of one verb.
type call struct {
	context.Context
	*printer
	flags *cli.Context
	// args are the arguments behind the verb.
	args []string
	verb *verb
	// verbs are all verbs of the program.
	verbs []*verb
	// daemon and writer are the connections to the daemon of this host, and to etcd, once they are asked anything; members are etcd's URLs.
	daemon  *api.Client
	writer  *etcd.Writer
	members []string
	// socketWins over an etcd in the environment.
	socketWins bool
}

func newCall(ctx context.Context, w world, all []*verb, l *commandLine) *call {
	c := &call{Context: ctx, verbs: all, printer: &printer{world: w}, flags: l.flags, args: l.args, verb: l.verb, socketWins: l.socketWins}
	c.fleetWide = c.namesEtcd()
	return c
}

// prepare checks what all verbs share: the form of the output and the number of arguments.
func (c *call) prepare() (err error) {
	if len(c.verb.formats) > 0 {
		if err = c.choose(c.verb, c.flags.String("output")); err != nil {
			return err
		}
	}
	if c.verb.spellOut != nil {
		c.args = c.verb.spellOut(c.args)
	}
	return c.verb.counted(c.args)
}

func (c *call) close() {
	if c.daemon != nil {
		c.daemon.Close()
	}
	if c.writer != nil {
		_ = c.writer.Close() // what it did has been answered
	}
}

// argument is the nth argument; "" where there are fewer.
func (c *call) argument(n int) string {
	if n < len(c.args) {
		return c.args[n]
	}
	return ""
}

// verbText is the verb as it is typed, with what it lists: "vipctl get" needs etcd for nodes and pools only.
func (c *call) verbText() string {
	text := "vipctl " + c.verb.name
	if c.verb.spellOut != nil {
		text = strings.TrimSpace(text + " " + c.argument(0))
	}
	return text
}

// askDaemon asks the daemon of this host a question, such as (*api.Client).Status.
func askDaemon[T any](c *call, question func(*api.Client, context.Context) (T, error)) (answer T, err error) {
	client, err := c.client()
	if err == nil {
		answer, err = question(client, c)
	}
	return answer, err
}

// askEtcd asks etcd a question, such as (*etcd.Writer).Pools.
func askEtcd[T any](c *call, question func(*etcd.Writer, context.Context) (T, error)) (answer T, err error) {
	w, err := c.etcd()
	if err == nil {
		answer, err = question(w, c)
	}
	return answer, err
}

// mapped returns what to makes of each of all.
func mapped[T, R any](all []T, to func(T) R) []R {
	out := make([]R, len(all))
	for i, t := range all {
		out[i] = to(t)
	}
	return out
}

// traced runs the verb inside a span, where the config says who takes it. TRACEPARENT is what that goes on from, as pipelines set it;
// without a receiver it is passed on as it is.
func (c *call) traced() error {
	var said struct {
		Tracing config.Tracing `toml:"tracing"`
	}
	_ = readPart(c.flags.String("config"), &said) // what is wrong with it, others say
	o := tracing.Options{Endpoint: said.Tracing.OTLPEndpoint, Version: version.Version, Log: slog.New(slog.DiscardHandler)}
	o.Node, _ = os.Hostname() // without a name the span is still worth having
	ctx, end := tracing.Command(c.Context, o, c.verbText(), c.getenv("TRACEPARENT"))
	c.Context = ctx
	err := c.verb.run(c)
	end(err)
	return err
}
