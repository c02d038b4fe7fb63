package cli

import (
	"context"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/wording"
)

// Verb is one command: what its help says, what it takes, and what it does.
type Verb struct {
	Name string
	// Args are the arguments, as help writes them; brief is the line in the list of commands.
	Args, Brief string
	// About says more, in whole paragraphs; example is one command line.
	About, Example string
	Flags          []urfave.Flag
	// Formats are the values of -o, the default first; none: the verb has no -o.
	Formats []string
	// MinArgs and most bound the number of arguments; most -1: no bound. Verbs whose arguments depend on flags check
	// those themselves.
	MinArgs, MaxArgs int
	// Complete lists what may stand at the end of the arguments given so far.
	Complete Completer
	// Fleet verbs may talk to etcd, and have the flags for it.
	Fleet bool
	// Traced verbs begin the trace of the change that they make.
	Traced bool
	// Hidden verbs are for scripts, and get what follows as it stands.
	Hidden bool
	// wraps: the arguments may end in "--" and a command, and "--" is left among them.
	Wraps bool
	// SpellOut rewrites the arguments of a verb whose first one is a kind of thing, which may be abbreviated, and joined with a
	// name: svc/web. Nil leaves them.
	SpellOut func(args []string) []string
	// Values complete what follows flags, by the flags' names.
	Values map[string]Completer
	Run    func(c *Call) error
}

// AllFlags are the verb's own and those that all have.
func (v *Verb) AllFlags() []urfave.Flag {
	flags := slices.Clone(v.Flags)
	if len(v.Formats) > 0 {
		flags = append(flags, &urfave.StringFlag{
			Name: "output", Aliases: []string{"o"}, Value: v.Formats[0],
			Usage: "the `FORM` of the output: " + wording.List(v.forms(), "or"),
		})
	}
	if v.Fleet {
		flags = append(flags, fleetFlags()...)
	}
	return append(flags,
		&urfave.StringFlag{Name: "socket", EnvVars: []string{"VIPCTL_SOCKET"}, Usage: "the daemon's socket, a `PATH`; default: what the config says"},
		&urfave.StringFlag{Name: "config", EnvVars: []string{"VIPCTL_CONFIG"}, Value: config.DefaultFile, Usage: "the daemon's config, a `FILE`"},
	)
}

// TakesValue reports whether f is followed by a value.
func TakesValue(f urfave.Flag) bool {
	_, isBool := f.(*urfave.BoolFlag)
	return !isBool
}

func (v *Verb) Usage() string { return strings.TrimSpace("vipctl " + v.Name + " " + v.Args) }

func execute(ctx context.Context, w World, all []*Verb, typed []string) error {
	if len(typed) > 0 && typed[0] == CompleteName {
		typed = append([]string{CompleteName, "--"}, typed[1:]...) // they are not parsed
	}
	line, err := Parse(ctx, all, typed)
	switch {
	case err != nil:
		return err
	case line.Verb == nil:
		return (&Printer{World: w}).Print(appHelp(all))
	case line.Help:
		return (&Printer{World: w}).Print(line.Verb.help())
	}
	return line.Run(ctx, w, all)
}

// Run runs the verb of a command line.
func (l *CommandLine) Run(ctx context.Context, w World, all []*Verb) error {
	c := newCall(ctx, w, all, l)
	if err := c.prepare(); err != nil {
		return err
	}
	defer c.close()
	if l.Verb.Traced {
		return c.traced()
	}
	return l.Verb.Run(c)
}

func (v *Verb) counted(args []string) error {
	switch {
	case len(args) < v.MinArgs:
		return WrongUse("\"vipctl %s\" needs %s; for example: %s", v.Name, v.Args, v.Example)
	case v.MaxArgs >= 0 && len(args) > v.MaxArgs:
		return WrongUse("\"vipctl %s\": unexpected argument %q; usage: %s", v.Name, args[v.MaxArgs], v.Usage())
	}
	return nil
}

// Choice returns value if it is one of possible, and else says which are.
func Choice(what, value string, possible []string) (string, error) {
	if slices.Contains(possible, value) {
		return value, nil
	}
	return "", WrongUse("%s %q is not possible here; it can be %s", what, value, wording.List(possible, "or"))
}
