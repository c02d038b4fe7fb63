package cli

import (
	"context"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/wording"
)

// Verb is a subcommand: its help, its arguments and flags, and its function.
type Verb struct {
	// Name is the word that selects the verb.
	Name string
	// Args describes the arguments in the help. Brief is the description in the list of commands.
	Args, Brief string
	// About is the help text, in paragraphs. Example is an example command line.
	About, Example string
	// Flags lists the flags that only this verb has.
	Flags []Flag
	// Formats lists the values of -o. The default is first. A verb without formats has no -o.
	Formats []string
	// MinArgs and MaxArgs limit the number of arguments. MaxArgs may be AnyArgs or WithCommand.
	// Verbs whose arguments depend on flags check them in Run.
	MinArgs, MaxArgs int
	// Complete completes the arguments. If nil, completion offers no words.
	Complete Completer
	// Fleet reports whether the verb may use etcd, and has the flags for etcd.
	Fleet bool
	// SpellOut rewrites the arguments of a verb whose first argument is a kind of object: svc/web
	// becomes services and web. If nil, the arguments are unchanged.
	SpellOut func(args []string) []string
	// Values maps each flag name to the completer for the flag's value.
	Values map[string]Completer
	// Run runs the verb.
	Run func(c *Call) error
}

// These values of MaxArgs set no limit.
const (
	// AnyArgs permits any number of arguments.
	AnyArgs = -1
	// WithCommand permits any number of arguments, which may end in "--" and a command. Args keeps
	// the "--".
	WithCommand = -2
)

// Hidden reports whether the verb is only for scripts. Help omits it, and its arguments are not
// parsed as flags.
func (v *Verb) Hidden() bool { return strings.HasPrefix(v.Name, "__") }

// Group is a titled group of verbs in the list of commands that the help prints.
type Group struct {
	Title string
	Verbs []*Verb
}

func ungrouped(groups []Group) (verbs []*Verb) {
	for _, g := range groups {
		verbs = append(verbs, g.Verbs...)
	}
	return verbs
}

// allFlags returns the flags that only this verb has, and the flags that it shares with others.
func (v *Verb) allFlags() []Flag { return append(v.ownFlags(), v.sharedFlags()...) }

// ownFlags returns the flags that the verb's help describes.
func (v *Verb) ownFlags() []Flag {
	flags := slices.Clone(v.Flags)
	if len(v.Formats) > 0 {
		flags = append(flags, &urfave.StringFlag{
			Name: "output", Aliases: []string{"o"}, Value: v.Formats[0],
			Usage: "print the output as `FORM`: " + wording.List(v.forms(), "or"),
		})
	}
	return flags
}

// sharedFlags returns the flags for connections to the daemon and to etcd.
func (v *Verb) sharedFlags() []Flag {
	if v.Fleet {
		return append(daemonFlags(), fleetFlags()...)
	}
	return daemonFlags()
}

func daemonFlags() []Flag {
	return []Flag{
		&urfave.StringFlag{Name: "socket", EnvVars: []string{"VIPCTL_SOCKET"}, Usage: "connect to the daemon's socket at `PATH`; default: from the config"},
		&urfave.StringFlag{Name: "config", EnvVars: []string{"VIPCTL_CONFIG"}, Value: config.DefaultFile, Usage: "read the daemon's config from `FILE`"},
	}
}

// takesValue reports whether f is followed by a value.
func takesValue(f urfave.Flag) bool {
	_, isBool := f.(*urfave.BoolFlag)
	return !isBool
}

// Usage returns the verb and its arguments as a command line.
func (v *Verb) Usage() string { return strings.TrimSpace("vipctl " + v.Name + " " + v.Args) }

func execute(ctx context.Context, w World, groups []Group, typed []string) error {
	all := ungrouped(groups)
	if len(typed) > 0 && typed[0] == completeName {
		typed = append([]string{completeName, "--"}, typed[1:]...) // later words are not parsed
	}
	line, err := parse(ctx, all, typed)
	switch {
	case err != nil:
		return err
	case line.Verb == nil:
		return (&Printer{World: w}).Print(appHelp(groups))
	case line.Help:
		return (&Printer{World: w}).Print(line.Verb.help())
	}
	c := newCall(ctx, w, all, line)
	if err := c.prepare(); err != nil {
		return err
	}
	defer c.close()
	return line.Verb.Run(c)
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

// Choice returns value if it is one of the possible values. Otherwise it returns an error that
// lists the possible values.
func Choice(what, value string, possible []string) (string, error) {
	if slices.Contains(possible, value) {
		return value, nil
	}
	return "", WrongUse("%s %q is not possible here; use %s", what, value, wording.List(possible, "or"))
}
