package cli

import (
	"cmp"
	"context"
	"flag"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/lookup"
)

// commandLine is a parsed command line. Flags may be anywhere among the arguments.
type commandLine struct {
	Verb *Verb // nil if only help is requested
	// Flags holds the values of the verb's flags, including values from the environment.
	Flags *urfave.Context
	// Args are the arguments without the verb.
	Args []string
	Help bool
	// SocketWins reports whether the command line names a socket but no etcd. If so, an etcd
	// address in the environment is ignored.
	SocketWins bool
}

// parse finds the verb, the flags and the arguments on a command line.
func parse(ctx context.Context, verbs []*Verb, typed []string) (*commandLine, error) {
	line, v := &commandLine{}, verbIn(verbs, typed)
	args, used, marked := scan(typed, flagsWithValue(verbs, v))
	used = slices.DeleteFunc(used, func(f usedFlag) bool {
		line.Help = line.Help || f.isHelp()
		return f.isHelp()
	})
	if len(args) > 0 && args[0] == "help" {
		args = args[1:]
		marked = marked - 1
		line.Help = true
	}
	if len(args) == 0 && slices.ContainsFunc(used, func(f usedFlag) bool { return f.name == "version" }) {
		v, args = verbNamed(verbs, "version"), []string{"version"}
	}
	if v == nil {
		if len(args) == 0 && line.Help {
			return line, nil
		}
		return nil, noVerb(verbs, args, used)
	}
	line.Verb, line.Args = v, args[1:]
	if at := marked - 1; v.MaxArgs == WithCommand && at >= 0 {
		line.Args = slices.Insert(slices.Clone(line.Args), at, "--") // the command that the verb runs follows "--"
	}
	if line.Help || v.Hidden() {
		used = nil
	}
	if v.Name == "version" { // "vipctl --version" is the verb, and no verb has a flag of this name
		used = slices.DeleteFunc(used, func(f usedFlag) bool { return f.name == "version" })
	}
	line.SocketWins = socketWins(used)
	return line, line.setFlags(ctx, used)
}

// scan splits a command line into arguments and flags. withValue maps each flag name to whether the
// flag has a value. marked is the number of arguments before "--", or -1 if there is no "--".
func scan(args []string, withValue map[string]bool) (rest []string, used []usedFlag, marked int) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return append(rest, args[i+1:]...), used, len(rest)
		case !isFlag(arg):
			rest = append(rest, arg)
			continue
		}
		f := readFlag(arg, withValue)
		if withValue[f.name] && !f.hasValue {
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

// isFlag reports whether an argument is a flag. "-" and negative numbers are not flags.
func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && (arg[1] < '0' || arg[1] > '9')
}

// usedFlag is a flag on a command line.
type usedFlag struct {
	text, name, value string // text is the flag as typed, for messages
	// lacks reports whether the flag needs a value and the command line ends before it.
	hasValue, lacks bool
}

// readFlag parses --name, --name=value, -n, -n=value and -nvalue.
func readFlag(arg string, takesValue map[string]bool) usedFlag {
	text, value, has := strings.Cut(arg, "=")
	name := strings.TrimLeft(text, "-")
	if short := name != "" && !strings.HasPrefix(text, "--"); short && len(name) > 1 && takesValue[name[:1]] {
		return usedFlag{text: text[:2], name: name[:1], value: strings.TrimPrefix(arg[2:], "="), hasValue: true}
	}
	return usedFlag{text: text, name: name, value: value, hasValue: has}
}

// valueFlags maps each flag name in verbs to whether the flag has a value. If the verbs disagree,
// it maps the name to true.
func valueFlags(verbs []*Verb) map[string]bool {
	withValue := map[string]bool{"version": false}
	for _, v := range verbs {
		for _, f := range v.allFlags() {
			for _, name := range f.Names() {
				withValue[name] = withValue[name] || takesValue(f)
			}
		}
	}
	return withValue
}

// flagsWithValue maps each flag name to whether the flag has a value for the verb v. For flags that
// v does not have, it uses the other verbs' definitions.
func flagsWithValue(verbs []*Verb, v *Verb) map[string]bool {
	withValue := valueFlags(verbs)
	if v != nil {
		maps.Copy(withValue, valueFlags([]*Verb{v}))
	}
	return withValue
}

// verbIn returns the verb on a command line, or nil. A word is the verb if it is the first argument
// when the line is parsed with that verb's flags. For example, -f has a value for apply, but not
// for events. If several words qualify, the last word is the verb.
func verbIn(verbs []*Verb, typed []string) *Verb {
	for _, word := range slices.Backward(typed) {
		v := verbNamed(verbs, word)
		if v == nil {
			continue
		}
		args, _, _ := scan(typed, flagsWithValue(verbs, v))
		if len(args) > 0 && args[0] == "help" {
			args = args[1:]
		}
		if len(args) > 0 && args[0] == word {
			return v
		}
	}
	return nil
}

// noVerb returns the error for a command line without a verb.
func noVerb(verbs []*Verb, args []string, used []usedFlag) error {
	const seeHelp = "; \"vipctl --help\" lists them"
	flags := valueFlags(verbs)
	if len(used) > 0 {
		f := used[0]
		if _, known := flags[f.name]; !known {
			// Don't suggest single-letter flags.
			long := slices.DeleteFunc(slices.Sorted(maps.Keys(flags)), func(name string) bool { return len(name) == 1 })
			return WrongUse("vipctl has no flag %s%s", f.text, cmp.Or(lookup.Meant("--"+f.name, lists.Mapped(long, dashed)), seeHelp))
		}
		if f := used[len(used)-1]; f.lacks {
			return WrongUse("flag %s needs a value", f.text)
		}
	}
	if len(args) == 0 {
		return WrongUse("no command given" + seeHelp)
	}
	return WrongUse("there is no command %q%s", args[0], cmp.Or(lookup.Meant(args[0], verbNames(verbs)), seeHelp))
}

func (l *commandLine) setFlags(ctx context.Context, used []usedFlag) error {
	v := l.Verb
	app := &urfave.App{DisableSliceFlagSeparator: true, Writer: io.Discard} // file names may have commas
	app.Setup()
	set := flag.NewFlagSet(v.Name, flag.ContinueOnError)
	all, flags := v.allFlags(), map[string]urfave.Flag{}
	for _, f := range all {
		if err := f.Apply(set); err != nil { // the error is about a value in the environment
			return WrongUse("\"vipctl %s\": %v", v.Name, err)
		}
		for _, name := range f.Names() {
			flags[name] = f
		}
	}
	l.Flags = urfave.NewContext(app, set, nil)
	l.Flags.Context, l.Flags.Command = ctx, &urfave.Command{Name: v.Name, Flags: all}
	for _, u := range used {
		if err := v.set(set, u, flags); err != nil {
			return err
		}
	}
	return nil
}

// set sets one flag, under its first name.
func (v *Verb) set(set *flag.FlagSet, u usedFlag, flags map[string]urfave.Flag) error {
	f := flags[u.name]
	switch {
	case u.lacks:
		return WrongUse("flag %s needs a value", u.text)
	case f == nil && (u.name == "o" || u.name == "output"):
		return WrongUse("\"vipctl %s\" has only one form of output, so it does not accept -o", v.Name)
	case f == nil:
		names := lists.Mapped(v.allFlags(), func(f urfave.Flag) string { return "--" + f.Names()[0] })
		return WrongUse("\"vipctl %s\" has no flag %s%s", v.Name, u.text, lookup.Meant("--"+u.name, names))
	}
	value := u.value
	if !takesValue(f) && !u.hasValue {
		value = "true"
	}
	if !takesValue(f) && value != "true" && value != "false" {
		return WrongUse("flag %s does not accept a value", u.text)
	}
	parsed := value
	if _, number := f.(*urfave.IntFlag); number { // checked here because the flag set would parse 010 as octal
		parsed = ""
		if n, err := strconv.Atoi(value); err == nil {
			parsed = strconv.Itoa(n)
		}
	}
	if set.Set(f.Names()[0], parsed) == nil {
		return nil
	}
	if _, ok := f.(*urfave.DurationFlag); ok {
		return WrongUse("%s %q is not a duration, such as 90s or 10m", u.text, value)
	}
	return WrongUse("%s %q is not a whole number", u.text, value)
}

// socketWins reports whether flags name the daemon's socket but no etcd.
func socketWins(used []usedFlag) bool {
	named := func(name string) bool {
		return slices.ContainsFunc(used, func(f usedFlag) bool { return f.name == name })
	}
	return named("socket") && !named("etcd")
}

func verbNamed(verbs []*Verb, name string) *Verb {
	if at := slices.IndexFunc(verbs, func(v *Verb) bool { return v.Name == name }); at >= 0 {
		return verbs[at]
	}
	return nil
}

// verbNames returns the names of the verbs that the help lists.
func verbNames(verbs []*Verb) (names []string) {
	for _, v := range verbs {
		if !v.Hidden() {
			names = append(names, v.Name)
		}
	}
	return names
}
