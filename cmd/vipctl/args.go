package main

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"vipd/cmd/internal/lookup"
)

// arranged is a command line in the order that urfave/cli understands: it would take flags behind an argument for
// further arguments, without a word.
type arranged struct {
	verb *verb // nil means none was given
	// flags are in the forms --name or --name=value, in the order given.
	flags []string
	// rest are the arguments without the verb.
	rest []string
	// marked is how many of rest stood before "--"; -1 means there was none.
	marked int
	help   bool
	// socketWins: a socket stands on the line and no etcd, so that what the environment says of one does not count.
	socketWins bool
}

// line is what urfave/cli gets.
func (a *arranged) line() []string {
	line := []string{"vipctl"}
	if a.verb != nil {
		line = append(line, a.verb.name)
	}
	if a.help {
		return append(line, "--help")
	}
	return append(append(append(line, a.flags...), "--"), a.rest...)
}

// arrange finds verb, flags and arguments, in whatever order they stand.
func arrange(verbs []*verb, args []string) (*arranged, error) {
	var a arranged
	var all, used []usedFlag
	a.rest, all, a.marked = scan(args, valuesOf(verbs, args))
	for _, f := range all {
		switch {
		case f.lacks:
			return nil, wrongUse("flag %s needs a value", f.text)
		case f.name == "help" || f.name == "h":
			a.help = true
		default:
			used = append(used, f)
		}
	}
	if err := a.findVerb(verbs, used); err != nil || a.verb == nil {
		return &a, err
	}
	return &a, a.takeFlags(used)
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

// valuesOf is valueFlags, with what counts for the verb of this command line: -f is a file for apply, and none for
// events. A flag may stand before the verb, so that the verb is looked for in both readings.
func valuesOf(verbs []*verb, args []string) map[string]bool {
	takes := valueFlags(verbs)
	v := verbIn(verbs, args, takes)
	if v == nil {
		bare := maps.Clone(takes)
		for _, v := range verbs {
			for name, takesOne := range valueFlags([]*verb{v}) {
				bare[name] = bare[name] && takesOne
			}
		}
		v = verbIn(verbs, args, bare)
	}
	if v != nil {
		maps.Copy(takes, valueFlags([]*verb{v}))
	}
	return takes
}

// verbIn returns the verb of a command line; nil means it has none.
func verbIn(verbs []*verb, args []string, takes map[string]bool) *verb {
	rest, _, _ := scan(args, takes)
	if rest = slices.DeleteFunc(rest, func(arg string) bool { return arg == "help" }); len(rest) == 0 {
		return nil
	}
	return verbNamed(verbs, rest[0])
}

// findVerb takes the verb from the front of the arguments.
func (a *arranged) findVerb(verbs []*verb, used []usedFlag) error {
	if len(a.rest) > 0 && a.rest[0] == "help" {
		a.rest, a.help = a.rest[1:], true
	}
	if len(a.rest) == 0 {
		switch {
		case a.help:
			return nil
		case slices.ContainsFunc(used, func(f usedFlag) bool { return f.name == "version" }):
			a.rest = []string{"version"}
		default:
			return cmp.Or(unknownFlag(verbs, used), wrongUse("no command is given; \"vipctl --help\" lists them"))
		}
	}
	name := a.rest[0]
	if v := verbNamed(verbs, name); v != nil {
		a.verb, a.rest = v, a.rest[1:]
		if at := a.marked - 1; v.wraps && at >= 0 {
			a.rest = slices.Insert(slices.Clone(a.rest), at, "--") // what it takes for a command is behind it
		}
		return nil
	}
	if err := unknownFlag(verbs, used); err != nil {
		return err // what was taken for the command is its value
	}
	return wrongUse("there is no command %q%s", name, cmp.Or(lookup.Meant(name, verbNames(verbs)), "; \"vipctl --help\" lists them"))
}

// unknownFlag says what is wrong where the first flag is none of any verb.
func unknownFlag(verbs []*verb, used []usedFlag) error {
	flags := valueFlags(verbs)
	if len(used) == 0 {
		return nil
	} else if _, known := flags[used[0].name]; known {
		return nil
	}
	var long []string
	for name := range flags {
		if len(name) > 1 { // of a single letter no other is near
			long = append(long, "--"+name)
		}
	}
	help := cmp.Or(lookup.Meant("--"+used[0].name, slices.Sorted(slices.Values(long))), "; \"vipctl --help\" lists them")
	return wrongUse("vipctl has no flag %s%s", used[0].text, help)
}

// takeFlags hands the flags to the verb, if it has them.
func (a *arranged) takeFlags(used []usedFlag) error {
	if a.verb.hidden {
		return nil
	}
	var long []string
	flags := map[string]cli.Flag{}
	for _, f := range a.verb.allFlags() {
		for _, name := range f.Names() {
			flags[name] = f
		}
		long = append(long, "--"+f.Names()[0])
	}
	a.socketWins = socketWins(used)
	for _, f := range used {
		flag := flags[f.name]
		switch {
		case f.name == "version" && a.verb.name == "version":
			continue
		case flag == nil && (f.name == "o" || f.name == "output"):
			return wrongUse("\"vipctl %s\" has one form of output and takes no -o", a.verb.name)
		case flag == nil:
			return wrongUse("\"vipctl %s\" has no flag %s%s", a.verb.name, f.text, lookup.Meant("--"+f.name, long))
		case f.hasValue && !takesValue(flag) && f.value != "true" && f.value != "false":
			return wrongUse("flag %s takes no value", f.text)
		case mistake(flag, f.value) != "":
			return wrongUse("%s %q %s", f.text, f.value, mistake(flag, f.value))
		case f.hasValue:
			a.flags = append(a.flags, "--"+f.name+"="+f.value)
		default:
			a.flags = append(a.flags, "--"+f.name)
		}
	}
	return nil
}

// socketWins reports whether flags name the daemon's socket, and no etcd.
func socketWins(used []usedFlag) bool {
	named := func(name string) bool {
		return slices.ContainsFunc(used, func(f usedFlag) bool { return f.name == name })
	}
	return named("socket") && !named("etcd")
}

// mistake says why the value is none for the flag; "" means that it may be one.
func mistake(f cli.Flag, value string) string {
	switch f.(type) {
	case *cli.DurationFlag:
		if _, err := time.ParseDuration(value); err != nil {
			return "is not a time, such as 90s or 10m"
		}
	case *cli.IntFlag, *cli.Int64Flag:
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			return "is not a whole number"
		}
	}
	return ""
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
