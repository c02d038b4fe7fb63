package cli

import (
	"fmt"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
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
	b.WriteString("\nFlags of all commands; flags may stand anywhere before \"--\":\n")
	for _, f := range daemonFlags() {
		writeFlag(&b, f)
	}
	b.WriteString(`  -h, --help            show the help of a command, with an example

Flags of commands with several output formats; their help lists the formats:
  -o, --output FORM     print the output as FORM: table, wide, json, yaml, toml,
                        name or jsonpath=TEMPLATE, as in kubectl, such as
                        jsonpath='{[*].name}'

Flags of commands that use etcd:
`)
	for _, f := range fleetFlags() {
		writeFlag(&b, f)
	}
	b.WriteString(`
Exit codes: 0 success; 1 failure; 2 incorrect usage; 3 there are differences
(diff) or services that need a decision (convert); 4 a service is down (status
--exit-code); 130 interrupted by Ctrl-C; 143 ended by SIGTERM.
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
	fmt.Fprintf(&b, "\nExample:\n  %s\n", v.Example)
	if own := v.ownFlags(); len(own) > 0 {
		b.WriteString("\nFlags:\n")
		for _, f := range own {
			writeFlag(&b, f)
		}
	}
	shared := lists.Mapped(v.sharedFlags(), func(f Flag) string { return dashed(f.Names()[0]) })
	others := fmt.Sprintf("Other flags: %s; \"vipctl --help\" describes them.", wording.List(shared, "and"))
	fmt.Fprintf(&b, "\n%s\n", strings.Join(table.Wrap(others, helpWidth), "\n"))
	return b.String()
}

// writeFlag writes a flag's names, its purpose and its default.
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
	if names := doc.GetEnvVars(); len(names) > 0 {
		usage += " (environment " + strings.Join(names, ", ") + ")"
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
