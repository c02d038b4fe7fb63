package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// completeName is the verb that the completion scripts call with the words up to the cursor.
const completeName = "__complete"

// If vipctl offers no words, the shell completes file names.
const bashCompletion = `# bash completion of vipctl
_vipctl() {
    local line cur="${COMP_WORDS[COMP_CWORD]}" words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    # Words are broken at ":" and "=", which addresses and flags contain; read them from the line instead.
    line="${COMP_LINE:0:COMP_POINT}"
    read -r -a words <<<"$line"
    words=("${words[@]:1}")
    [[ "$line" == *[[:space:]] ]] && words+=("")
    COMPREPLY=()
    local offered word="${words[${#words[@]}-1]}" cut="" each
    [[ "$word" != "$cur" ]] && cut="${word%"$cur"}"
    mapfile -t offered < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
    for each in "${offered[@]}"; do
        [[ "$each" == "$cut"* ]] && COMPREPLY+=("${each#"$cut"}")
    done
}
complete -o default -F _vipctl vipctl
`

const zshCompletion = `#compdef vipctl
# zsh completion of vipctl
_vipctl() {
    local -a offered
    offered=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    offered=("${(@)offered:#}")
    if (( ${#offered} )); then
        compadd -- "${offered[@]}"
    else
        _files
    fi
}
if [[ "${funcstack[1]}" == _vipctl ]]; then
    _vipctl "$@"
else
    compdef _vipctl vipctl
fi
`

const fishCompletion = `# fish completion of vipctl
function __vipctl_offered
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    $words[1] __complete $words[2..-1] "$last" 2>/dev/null
end
function __vipctl_has_offers
    count (__vipctl_offered) >/dev/null
end
complete -c vipctl -n __vipctl_has_offers -f
complete -c vipctl -a '(__vipctl_offered)'
`

// CompleteVerb returns the verb that the completion scripts call.
func CompleteVerb() *Verb {
	return &Verb{
		Name: completeName, Brief: "list completions of a command line", MaxArgs: AnyArgs, Fleet: true,
		About: "Prints the possible completions of the last word, one per line. Scripts from \"vipctl completion\" call this command.", Example: "vipctl __complete get \"\"",
		Run: runComplete,
	}
}

// completionWait limits how long completion waits for answers. It is short because a user is
// waiting.
const completionWait = time.Second

// runComplete returns nil even if no completion is possible.
func runComplete(c *Call) error {
	ctx, cancel := context.WithTimeout(c.Context, completionWait)
	defer cancel()
	words := slices.Clone(c.Args)
	if len(words) == 0 {
		words = []string{""}
	}
	c.Context = ctx
	last := words[len(words)-1]
	var b strings.Builder
	for _, offer := range offers(c, words[:len(words)-1], last) {
		if strings.HasPrefix(offer, last) {
			fmt.Fprintln(&b, offer)
		}
	}
	return c.Print(b.String())
}

// offers lists the words that may follow the words in before. If last starts with a dash, it lists
// flags.
func offers(c *Call, before []string, last string) []string {
	all := c.verbs
	args, used, _ := scan(before, flagsWithValue(all, verbIn(all, before)))
	var v *Verb
	if len(args) > 0 {
		if v = verbNamed(all, args[0]); v == nil {
			return nil
		}
		args = args[1:]
	}
	for _, f := range used {
		if f.lacks {
			return c.offerValue(v, f.name)
		}
		if slices.Contains(placeFlags(), f.name) {
			_ = c.Flags.Set(f.name, f.value) // completion ignores unknown flags
		}
	}
	c.socketWins = socketWins(used)
	c.FleetWide = c.NamesEtcd()
	switch {
	case strings.HasPrefix(last, "-"):
		return offerFlags(v)
	case v == nil:
		return verbNames(all)
	case v.Complete != nil:
		c.Verb = v
		return slices.Compact(slices.Sorted(slices.Values(v.Complete(c, args))))
	}
	return nil
}

// placeFlags returns the flags that select where names come from: the daemon or etcd.
func placeFlags() []string {
	names := []string{"socket", "config"}
	for _, f := range fleetFlags() {
		names = append(names, f.Names()...)
	}
	return names
}

func offerFlags(v *Verb) []string {
	v = cmp.Or(v, &Verb{})
	out := []string{"--help"}
	for _, f := range v.allFlags() {
		for _, name := range f.Names() {
			out = append(out, dashed(name))
		}
	}
	return out
}

func (c *Call) offerValue(v *Verb, flag string) []string {
	switch {
	case v == nil:
	case flag == "o" || flag == "output":
		return v.forms()
	case v.Values[flag] != nil:
		return v.Values[flag](c, nil)
	}
	return nil
}
