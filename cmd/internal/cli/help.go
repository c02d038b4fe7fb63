package cli

import (
	"fmt"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
)

// appHelp returns the text of "vipctl --help".
func appHelp(groups []Group) string {
	var b strings.Builder
	b.WriteString(`vipctl - query and control vipd, the service load balancer of this host

Usage:
  vipctl COMMAND [ARGUMENTS] [FLAGS]
`)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n%s:\n", g.Title)
		for _, v := range g.Verbs {
			if !v.Hidden() {
				fmt.Fprintf(&b, "  %-13s%s\n", v.Name, v.Brief)
			}
		}
	}
	b.WriteString(`
Flags may stand anywhere; "--" ends them. All commands have:
  --socket PATH   the daemon's socket; default: api.socket of the config
                  (environment VIPCTL_SOCKET)
  --config FILE   the daemon's config; default: ` + config.DefaultFile + `
                  (environment VIPCTL_CONFIG)
  --etcd URL,...  etcd, where the command is about the etcd store; default: etcd
                  of the config (environment VIPCTL_ETCD). Further flags for it:
                  --prefix, --user, --password-file, --ca-file, --cert-file,
                  --key-file
  -o FORM         on reads: table, wide, json, toml or name, where they fit;
                  with json also yaml, and jsonpath=TEMPLATE as kubectl has it,
                  such as jsonpath='{[*].name}'
  -h, --help      help of a command, with an example

Exit codes: 0 done; 1 it failed; 2 wrong use; 3 there are differences (diff)
or services that need a decision (convert); 4 a service is down (status
--exit-code); 130 interrupted with Ctrl-C; 143 ended by SIGTERM.
`)
	return b.String()
}

const helpWidth = 78

// help returns the text of "vipctl VERB --help".
func (v *Verb) help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", v.Usage())
	for _, paragraph := range strings.Split(v.About, "\n\n") {
		b.WriteString("\n")
		for _, line := range table.Wrap(paragraph, helpWidth) {
			fmt.Fprintf(&b, "%s\n", line)
		}
	}
	fmt.Fprintf(&b, "\nExample:\n  %s\n\nFlags:\n", v.Example)
	for _, f := range v.allFlags() {
		writeFlag(&b, f)
	}
	return b.String()
}

// writeFlag writes a flag with its names, its purpose, and its default.
func writeFlag(b *strings.Builder, f urfave.Flag) {
	const indent = 22
	doc, ok := f.(urfave.DocGenerationFlag)
	if !ok {
		return
	}
	names := lists.Mapped(f.Names(), dashed)
	slices.SortStableFunc(names, func(a, b string) int { return len(a) - len(b) })
	left, usage := strings.Join(names, ", "), doc.GetUsage()
	if before, rest, ok := strings.Cut(usage, "`"); ok {
		value, after, _ := strings.Cut(rest, "`")
		left, usage = left+" "+value, before+value+after
	}
	value := doc.GetValue()
	if n, isInt := f.(*urfave.IntFlag); isInt && n.DefaultText != "" {
		value = n.DefaultText
	}
	if takesValue(f) && value != "" && value != "0s" {
		usage += "; default: " + strings.Trim(value, `"`)
	}
	lines := table.Wrap(usage, helpWidth-indent-2)
	if len(left) >= indent {
		fmt.Fprintf(b, "  %s\n", left)
		left = ""
	}
	for _, line := range lines {
		fmt.Fprintf(b, "  %-*s%s\n", indent, left, line)
		left = ""
	}
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}
