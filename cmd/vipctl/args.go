package main

import (
	"cmp"
	"context"
	"flag"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"vipd/cmd/internal/lookup"
)

// commandLine is a parsed command line. Flags stand anywhere among the arguments.
type commandLine struct {
	verb *verb // nil means that only help is wanted
	// flags have the values of the verb's flags, also from the environment.
	flags *cli.Context
	// args are the arguments without the verb.
	args []string
	help bool
	// socketWins reports whether the line names a socket and no etcd. Then an etcd in the environment does not count.
	socketWins bool
}

// parse finds the verb, the flags and the arguments of a command line.
func parse(ctx context.Context, verbs []*verb, typed []string) (*commandLine, error) {
	line, v := &commandLine{}, verbIn(verbs, typed)
	args, used, marked := scan(typed, takenBy(verbs, v))
	used = slices.DeleteFunc(used, func(f usedFlag) bool {
		line.help = line.help || f.isHelp()
		return f.isHelp()
	})
	if len(args) > 0 && args[0] == "help" {
		args, marked, line.help = args[1:], marked-1, true
	}
	if len(args) == 0 && slices.ContainsFunc(used, func(f usedFlag) bool { return f.name == "version" }) {
		v, args = verbNamed(verbs, "version"), []string{"version"}
	}
	if v == nil {
		if len(args) == 0 && line.help {
			return line, nil
		}
		return nil, noVerb(verbs, args, used)
	}
	line.verb, line.args = v, args[1:]
	if at := marked - 1; v.wraps && at >= 0 {
		line.args = slices.Insert(slices.Clone(line.args), at, "--") // the command that the verb runs follows it
	}
	if line.help || v.hidden || v.name == "version" {
		used = nil
	}
	line.socketWins = socketWins(used)
	return line, line.setFlags(ctx, used)
}

// scan takes a command line apart into arguments and flags; takes lists the flags with a value. Marked is how many of the arguments
// stood before "--"; -1 means there was none.
func scan(args []string, takes map[string]bool) (rest []string, used []usedFlag, marked int) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return append(rest, args[i+1:]...), used, len(rest)
		case !isFlag(arg):
			rest = append(rest, arg)
			continue
		}
		f := readFlag(arg, takes)
		if takes[f.name] && !f.hasValue {
			if i++; i < len(args) {
				f.value, f.hasValue = args[i], true
			} else {
				f.lacks = true
			}
		}
		used = append(used, f)
	}
	return rest, used, -1
}

func (f usedFlag) isHelp() bool { return f.name == "help" || f.name == "h" }

// isFlag tells flags from arguments: "-" alone and negative numbers are arguments.
func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && (arg[1] < '0' || arg[1] > '9')
}

// usedFlag is a flag as it stands on the command line.
type usedFlag struct {
	text, name, value string // text is what was typed, for messages
	// lacks: it takes a value, and the command line ends before that.
	hasValue, lacks bool
}

// readFlag reads --name, --name=value, -n, -n=value and -nvalue.
func readFlag(arg string, takesValue map[string]bool) usedFlag {
	text, value, has := strings.Cut(arg, "=")
	name := strings.TrimLeft(text, "-")
	if short := name != "" && !strings.HasPrefix(text, "--"); short && len(name) > 1 && takesValue[name[:1]] {
		return usedFlag{text: text[:2], name: name[:1], value: strings.TrimPrefix(arg[2:], "="), hasValue: true}
	}
	return usedFlag{text: text, name: name, value: value, hasValue: has}
}

// valueFlags lists all names of flags of these verbs; true: it takes a value. Where verbs differ, it does.
func valueFlags(verbs []*verb) map[string]bool {
	takes := map[string]bool{"version": false}
	for _, v := range verbs {
		for _, f := range v.allFlags() {
			for _, name := range f.Names() {
				takes[name] = takes[name] || takesValue(f)
			}
		}
	}
	return takes
}

// takenBy reports for each name of a flag whether it takes a value: for a verb, or, of flags that it does not have, for any.
func takenBy(verbs []*verb, v *verb) map[string]bool {
	takes := valueFlags(verbs)
	if v != nil {
		maps.Copy(takes, valueFlags([]*verb{v}))
	}
	return takes
}

// verbIn returns the verb of a command line: the word that is the first argument if the line is read by the verb's own flags.
// -f has a value for apply, and none for events. The last such word counts. It returns nil if there is none.
func verbIn(verbs []*verb, typed []string) *verb {
	for _, word := range slices.Backward(typed) {
		v := verbNamed(verbs, word)
		if v == nil {
			continue
		}
		args, _, _ := scan(typed, takenBy(verbs, v))
		if len(args) > 0 && args[0] == "help" {
			args = args[1:]
		}
		if len(args) > 0 && args[0] == word {
			return v
		}
	}
	return nil
}

// noVerb says what is wrong with a command line that has no verb.
func noVerb(verbs []*verb, args []string, used []usedFlag) error {
	const lists = "; \"vipctl --help\" lists them"
	flags := valueFlags(verbs)
	if len(used) > 0 {
		f := used[0]
		if _, known := flags[f.name]; !known {
			// No other flag resembles a single letter.
			long := slices.DeleteFunc(slices.Sorted(maps.Keys(flags)), func(name string) bool { return len(name) == 1 })
			return wrongUse("vipctl has no flag %s%s", f.text, cmp.Or(lookup.Meant("--"+f.name, mapped(long, dashed)), lists))
		}
		if f := used[len(used)-1]; f.lacks {
			return wrongUse("flag %s needs a value", f.text)
		}
	}
	if len(args) == 0 {
		return wrongUse("no command is given" + lists)
	}
	return wrongUse("there is no command %q%s", args[0], cmp.Or(lookup.Meant(args[0], verbNames(verbs)), lists))
}

// setFlags sets the values of the verb's flags.
func (l *commandLine) setFlags(ctx context.Context, used []usedFlag) error {
	v := l.verb
	app := &cli.App{DisableSliceFlagSeparator: true, Writer: io.Discard} // names of files may have commas
	app.Setup()
	set := flag.NewFlagSet(v.name, flag.ContinueOnError)
	all, flags := v.allFlags(), map[string]cli.Flag{}
	for _, f := range all {
		if err := f.Apply(set); err != nil { // a value of the environment
			return wrongUse("\"vipctl %s\": %v", v.name, err)
		}
		for _, name := range f.Names() {
			flags[name] = f
		}
	}
	l.flags = cli.NewContext(app, set, nil)
	l.flags.Context, l.flags.Command = ctx, &cli.Command{Name: v.name, Flags: all}
	for _, u := range used {
		if err := v.set(set, u, flags); err != nil {
			return err
		}
	}
	return nil
}

// set sets one flag, under its first name.
func (v *verb) set(set *flag.FlagSet, u usedFlag, flags map[string]cli.Flag) error {
	f := flags[u.name]
	switch {
	case u.lacks:
		return wrongUse("flag %s needs a value", u.text)
	case f == nil && (u.name == "o" || u.name == "output"):
		return wrongUse("\"vipctl %s\" has one form of output and takes no -o", v.name)
	case f == nil:
		names := mapped(v.allFlags(), func(f cli.Flag) string { return "--" + f.Names()[0] })
		return wrongUse("\"vipctl %s\" has no flag %s%s", v.name, u.text, lookup.Meant("--"+u.name, names))
	}
	value := u.value
	if !takesValue(f) && !u.hasValue {
		value = "true"
	}
	if !takesValue(f) && value != "true" && value != "false" {
		return wrongUse("flag %s takes no value", u.text)
	}
	if set.Set(f.Names()[0], value) == nil {
		return nil
	}
	if _, is := f.(*cli.DurationFlag); is {
		return wrongUse("%s %q is not a time, such as 90s or 10m", u.text, value)
	}
	return wrongUse("%s %q is not a whole number", u.text, value)
}

// socketWins reports whether flags name the daemon's socket, and no etcd.
func socketWins(used []usedFlag) bool {
	named := func(name string) bool {
		return slices.ContainsFunc(used, func(f usedFlag) bool { return f.name == name })
	}
	return named("socket") && !named("etcd")
}

// verbNamed finds a verb; nil means there is none of that name.
func verbNamed(verbs []*verb, name string) *verb {
	if at := slices.IndexFunc(verbs, func(v *verb) bool { return v.name == name }); at >= 0 {
		return verbs[at]
	}
	return nil
}

// verbNames are those that help shows.
func verbNames(verbs []*verb) (names []string) {
	for _, v := range verbs {
		if !v.hidden {
			names = append(names, v.name)
		}
	}
	return names
}
