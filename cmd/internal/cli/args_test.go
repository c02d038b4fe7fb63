package cli

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"vipd/test/wait"
)

// testVerbs returns verbs that cover most kinds of flags and arguments.
func testVerbs() []*Verb {
	forms := []string{FormTable, FormJSON}
	return []*Verb{
		{Name: "status", Formats: forms, Flags: []Flag{&BoolFlag{Name: "watch", Aliases: []string{"w"}}}},
		{Name: "get", Formats: forms, Fleet: true, MaxArgs: 2},
		{Name: "drain", Formats: forms, MaxArgs: 2, Flags: []Flag{
			&StringFlag{Name: "node"}, &BoolFlag{Name: "wait"}, &DurationFlag{Name: "timeout"}, &StringFlag{Name: "reason"},
		}},
		{Name: "weight", MaxArgs: 3},
		{Name: "check", MaxArgs: 1},
		{Name: "events", Formats: forms, Flags: []Flag{
			&BoolFlag{Name: "follow", Aliases: []string{"f"}}, &IntFlag{Name: "lines", Aliases: []string{"n"}}, &StringFlag{Name: "kind"},
		}},
		{Name: "apply", Fleet: true, Flags: []Flag{&StringSliceFlag{Name: "file", Aliases: []string{"f"}}}},
		{Name: "register", Fleet: true, MaxArgs: WithCommand, Flags: []Flag{&DurationFlag{Name: "ttl"}}},
		{Name: "version"}, CompleteVerb(),
	}
}

func TestParse(t *testing.T) {
	for _, test := range []struct{ typed, want string }{
		{"status", "vipctl status --"},
		{"status -w", "vipctl status --watch=true --"},
		{"-w status", "vipctl status --watch=true --"},
		{"get services web -o json", "vipctl get --output=json -- services web"},
		{"-o json get services web", "vipctl get --output=json -- services web"},
		{"get -ojson services", "vipctl get --output=json -- services"},
		{"get -o=json services", "vipctl get --output=json -- services"},
		{"get --output json services", "vipctl get --output=json -- services"},
		{"--socket s drain --wait web 10.0.0.1 --timeout=3s", "vipctl drain --wait=true --timeout=3s --socket=s -- web 10.0.0.1"},
		{"drain web -- -x --node", "vipctl drain -- web -x --node"},
		{"drain --reason -- web a", "vipctl drain --reason=-- -- web a"},
		{"drain --reason --wait web a", "vipctl drain --reason=--wait -- web a"},
		{"drain --reason a=b web c", "vipctl drain --reason=a=b -- web c"},
		{"weight web 10.0.0.1 -1", "vipctl weight -- web 10.0.0.1 -1"},
		{"check - -w", `"vipctl check" has no flag -w`},
		{"check -", "vipctl check -- -"},
		{"--sokcet x status", "vipctl has no flag --sokcet; did you mean --socket?"},
		{"-x", `vipctl has no flag -x; "vipctl --help" lists them`},
		{"drain web --help", "vipctl drain --help"},
		{"-h", "vipctl --help"},
		{"help drain", "vipctl drain --help"},
		{"--version", "vipctl version --"},
		{"drain --node", "flag --node needs a value"},
		{"drain --nod gw1", `"vipctl drain" has no flag --nod; did you mean --node?`},
		{"drain --wait=1 web a", "flag --wait does not accept a value"},
		{"drain --timeout soon web a", `--timeout "soon" is not a duration, such as 90s or 10m`},
		{"events -f --kind health", "vipctl events --follow=true --kind=health --"},
		{"-f events", "vipctl events --follow=true --"},
		{"events -n 3 -f", "vipctl events --follow=true --lines=3 --"},
		{"-n 3 -f events", "vipctl events --follow=true --lines=3 --"},
		{"-f a.toml apply", "vipctl apply --file=[a.toml] --"},
		{"-f events apply", "vipctl apply --file=[events] --"},
		{"apply -f events", "vipctl apply --file=[events] --"},
		{"events -f=true", "vipctl events --follow=true --"},
		{"-f", "flag -f needs a value"},
		{"register web 10.0.0.1 --ttl 3s -- sh -c x", "vipctl register --ttl=3s -- web 10.0.0.1 -- sh -c x"},
		{"register web 10.0.0.1 -- sh -- -c", "vipctl register -- web 10.0.0.1 -- sh -- -c"},
		{"register web 10.0.0.1 --", "vipctl register -- web 10.0.0.1 --"},
		{"register web 10.0.0.1", "vipctl register -- web 10.0.0.1"},
		{"-- register web 10.0.0.1 -- sh", "vipctl register -- web 10.0.0.1 -- sh"},
		{"drian", `there is no command "drian"; did you mean drain?`},
		{"", `no command given; "vipctl --help" lists them`},
	} {
		t.Run(test.typed, func(t *testing.T) {
			line, err := parse(t.Context(), testVerbs(), strings.Fields(test.typed))
			var usage *usageError
			switch {
			case errors.As(err, &usage):
				if err.Error() != test.want {
					t.Errorf("error = %q, want %q", err, test.want)
				}
			case err != nil:
				t.Errorf("error = %v, want a usage error", err)
			case parsed(line) != test.want:
				t.Errorf("command line = %q, want %q", parsed(line), test.want)
			}
		})
	}
}

// parsed formats a command line. The flags that were set come first, under their first names, and
// then the arguments.
func parsed(l *commandLine) string {
	words := []string{"vipctl"}
	if l.Verb != nil {
		words = append(words, l.Verb.Name)
	}
	if l.Help {
		return strings.Join(append(words, "--help"), " ")
	}
	for _, f := range l.Verb.allFlags() {
		if name := f.Names()[0]; l.Flags.IsSet(name) {
			value := l.Flags.Value(name)
			if _, several := f.(*StringSliceFlag); several {
				value = l.Flags.StringSlice(name)
			}
			words = append(words, fmt.Sprintf("--%s=%v", name, value))
		}
	}
	return strings.Join(append(append(words, "--"), l.Args...), " ")
}

// TestParseInAnyOrder inserts flags at random positions in a command line. The parsed result must
// not change.
func TestParseInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	flags := [][]string{{"--wait"}, {"--timeout", "3s"}, {"--reason=x y"}, {"--socket", "s"}, {"-ojson"}, {"--config", "-"}}
	words := []string{"drain", "web", "10.0.0.1"}
	want := "vipctl drain --wait=true --timeout=3s --reason=x y --output=json --socket=s --config=- -- web 10.0.0.1"
	for range wait.Soak(60, 300) {
		line := [][]string{{words[0]}, {words[1]}, {words[2]}}
		for _, i := range r.Perm(len(flags)) {
			line = slices.Insert(line, r.IntN(len(line)+1), flags[i])
		}
		typed := slices.Concat(line...)
		got, err := parse(t.Context(), testVerbs(), typed)
		if err != nil {
			t.Fatalf("parsing %q: error = %v, want none", typed, err)
		}
		if text := parsed(got); text != want {
			t.Fatalf("%q: parsed = %q, want %q", typed, text, want)
		}
	}
}

// FuzzParse parses arbitrary words. Any error must be a usage error on a single line.
func FuzzParse(f *testing.F) {
	for _, line := range []string{"", "-", "--", "---", "-o", "-=", "--=", "get\x00-o\x00", "drain\x00--wait\x00--", "-\x00-x=\x00help", "__complete\x00--"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		_, err := parse(t.Context(), testVerbs(), strings.Split(line, "\x00"))
		if _, ok := errors.AsType[*usageError](err); err != nil && !ok {
			t.Errorf("%q: error = %v, want a usage error", line, err)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("%q: error = %q, want a single line", line, err)
		}
	})
}

// TestSocketWins parses command lines with and without --socket. A socket on the command line must
// override an etcd address in the environment, but not an etcd address on the command line.
func TestSocketWins(t *testing.T) {
	for line, want := range map[string]bool{
		"get services --socket /s":               true,
		"--socket=/s get services":               true,
		"get services":                           false,
		"get services --socket /s --etcd http:/": false,
	} {
		if a, err := parse(t.Context(), testVerbs(), strings.Fields(line)); err != nil || a.SocketWins != want {
			t.Errorf("%s: command line = %+v, error = %v; want the opposite SocketWins and no error", line, a, err)
		}
	}
}
