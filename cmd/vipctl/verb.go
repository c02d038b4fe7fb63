package main

import (
	"context"
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
	// spellOut rewrites the arguments of a verb whose first one is a kind of thing, which may be abbreviated, and joined with a
	// name: svc/web. Nil leaves them.
	spellOut func(args []string) []string
	// values complete what follows flags, by the flags' names.
	values map[string]completer
	run    func(c *call) error
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

func execute(ctx context.Context, w world, all []*verb, typed []string) error {
	if len(typed) > 0 && typed[0] == completeName {
		typed = append([]string{completeName, "--"}, typed[1:]...) // they are not parsed
	}
	line, err := parse(ctx, all, typed)
	switch {
	case err != nil:
		return err
	case line.verb == nil:
		return (&printer{world: w}).print(appHelp(all))
	case line.help:
		return (&printer{world: w}).print(line.verb.help())
	}
	return line.run(ctx, w, all)
}

// run runs the verb of a command line.
func (l *commandLine) run(ctx context.Context, w world, all []*verb) error {
	c := newCall(ctx, w, all, l)
	if err := c.prepare(); err != nil {
		return err
	}
	defer c.close()
	if l.verb.traced {
		return c.traced()
	}
	return l.verb.run(c)
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
