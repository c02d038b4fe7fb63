package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/wording"
)

// verb is one command: what its help says, what it takes, and what it does.
type verb struct {
	name string
	// args are the arguments, as help writes them; brief is the line in the list of commands.
	args, brief string
	// about says more, in whole paragraphs; example is one command line.
	about, example string
	flags          []cli.Flag
	// formats are the values of -o, the default first; none: the verb has no -o.
	formats []string
	// least and most bound the number of arguments; most -1: no bound. Verbs whose arguments depend on flags check
	// those themselves.
	least, most int
	// complete lists what may stand at the end of the arguments given so far.
	complete completer
	// fleet verbs may talk to etcd, and have the flags for it.
	fleet bool
	// traced verbs begin the trace of the change that they make.
	traced bool
	// hidden verbs are for scripts, and get what follows as it stands.
	hidden bool
	// wraps: the arguments may end in "--" and a command, and "--" is left among them.
	wraps bool
	// kinds: the first argument is a kind of thing, which may be abbreviated, and joined with a name: svc/web.
	kinds bool
	run   func(c *call) error
}

// verbs are all commands, in the order of help.
func verbs() []*verb {
	return []*verb{
		checkVerb(), planVerb(), convertVerb(), doctorVerb(), statusVerb(), getVerb(), describeVerb(), reloadVerb(), diffVerb(), connsVerb(), topVerb(), explainVerb(), eventsVerb(), checkNowVerb(),
		applyVerb(), deleteVerb(), exportVerb(), historyVerb(), rollbackVerb(), waitVerb(), registerVerb(), nodeVerb(), poolVerb(), vipVerb(), ownershipVerb(),
		drainVerb(), undrainVerb(), weightVerb(), cleanupVerb(), debugVerb(), completionVerb(), versionVerb(), completeVerb(),
	}
}

// allFlags are the verb's own and those that all have.
func (v *verb) allFlags() []cli.Flag {
	flags := slices.Clone(v.flags)
	if len(v.formats) > 0 {
		flags = append(flags, &cli.StringFlag{
			Name: "output", Aliases: []string{"o"}, Value: v.formats[0],
			Usage: "the `FORM` of the output: " + wording.List(v.forms(), "or"),
		})
	}
	if v.fleet {
		flags = append(flags, fleetFlags()...)
	}
	return append(flags,
		&cli.StringFlag{Name: "socket", EnvVars: []string{"VIPCTL_SOCKET"}, Usage: "the daemon's socket, a `PATH`; default: what the config says"},
		&cli.StringFlag{Name: "config", EnvVars: []string{"VIPCTL_CONFIG"}, Value: config.DefaultFile, Usage: "the daemon's config, a `FILE`"},
	)
}

// takesValue reports whether f is followed by a value.
func takesValue(f cli.Flag) bool {
	_, isBool := f.(*cli.BoolFlag)
	return !isBool
}

func (v *verb) usage() string { return strings.TrimSpace("vipctl " + v.name + " " + v.args) }

func execute(ctx context.Context, w world, args []string) error {
	if len(args) > 0 && args[0] == completeName {
		args = append([]string{completeName, "--"}, args[1:]...)
	}
	all := verbs()
	a, err := arrange(all, args)
	if err != nil {
		return err
	}
	app, help := newApp(w, all, a), &helpOutput{Writer: w.stdout}
	app.Writer = help
	return cmp.Or(app.RunContext(ctx, a.line()), help.err)
}

// helpOutput keeps the error of writing help, which the parser drops.
type helpOutput struct {
	io.Writer
	err error
}

func (o *helpOutput) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if err != nil {
		o.err = fmt.Errorf("writing the output: %w", err)
	}
	return n, err
}

// newApp makes the parser for a command line. It never exits, and prints nothing but help.
func newApp(w world, all []*verb, a *arranged) *cli.App {
	app := &cli.App{
		Name: "vipctl", HelpName: "vipctl", Usage: "query and control vipd, the service load balancer of this host",
		ErrWriter:       w.stderr,
		HideHelpCommand: true, HideVersion: true,
		DisableSliceFlagSeparator: true, // names of files may have commas
		ExitErrHandler:            func(*cli.Context, error) {},
		CustomAppHelpTemplate:     appHelp,
	}
	for _, v := range all {
		c := v.command(w, a)
		if v == a.verb { // to write the help of all verbs takes longer than most of them
			c.Description = v.help()
		}
		app.Commands = append(app.Commands, c)
	}
	return app
}

func (v *verb) command(w world, a *arranged) *cli.Command {
	return &cli.Command{
		Name: v.name, Usage: v.brief, Hidden: v.hidden, HideHelpCommand: true,
		Flags: v.allFlags(), CustomHelpTemplate: "{{.Description}}",
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return wrongUse("\"vipctl %s\": %v", v.name, err)
		},
		Action: func(c *cli.Context) error {
			call := newCall(c, w, v, a.socketWins)
			if err := call.prepare(); err != nil {
				return err
			}
			defer call.close()
			if v.traced {
				return call.traced()
			}
			return v.run(call)
		},
	}
}

func (v *verb) counted(args []string) error {
	switch {
	case len(args) < v.least:
		return wrongUse("\"vipctl %s\" needs %s; for example: %s", v.name, v.args, v.example)
	case v.most >= 0 && len(args) > v.most:
		return wrongUse("\"vipctl %s\": unexpected argument %q; usage: %s", v.name, args[v.most], v.usage())
	}
	return nil
}

// choice returns value if it is one of possible, and else says which are.
func choice(what, value string, possible []string) (string, error) {
	if slices.Contains(possible, value) {
		return value, nil
	}
	return "", wrongUse("%s %q is not possible here; it can be %s", what, value, wording.List(possible, "or"))
}
