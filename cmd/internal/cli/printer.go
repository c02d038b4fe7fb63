package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

// These are the output formats.
const (
	FormTable = "table"
	FormWide  = "wide"
	FormJSON  = "json"
	FormTOML  = "toml"
	FormName  = "name"
)

// Printer writes a verb's output in the requested format.
type Printer struct {
	World
	// Format is the output format, one of the verb's formats.
	Format string
	// FleetWide reports whether services and endpoints are shown as stored in etcd, without any
	// host's state.
	FleetWide bool
	// Remake converts the JSON document to the requested format.
	Remake func(*yaml.Node) (string, error)
}

// Print writes text to stdout.
func (p *Printer) Print(text string) error {
	if _, err := io.WriteString(p.Stdout, text); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// Show writes v as JSON if the format is JSON. Otherwise it writes the result of calling text.
func (p *Printer) Show(v any, text func() string) error {
	if p.Format == FormJSON {
		return p.PrintJSON(v)
	}
	return p.Print(text())
}

// PrintTable writes a table. If the table has no rows, it writes the sentence in empty to stderr
// instead.
func (p *Printer) PrintTable(t *table.Table, empty string) error {
	if t.Len() == 0 {
		p.Say("%s", empty)
		return nil
	}
	return p.Print(t.Text(p.Form()))
}

// Form returns the form in which tables are printed.
func (p *Printer) Form() table.Form {
	return table.Form{Wide: p.Format == FormWide, Color: p.Color, Width: p.Room(0)}
}

// PrintRows writes the rows as JSON if the format is JSON. Otherwise it writes the table.
func (p *Printer) PrintRows(rows any, t *table.Table, empty string) error {
	if p.Format == FormJSON {
		return p.PrintJSON(rows)
	}
	return p.PrintTable(t, empty)
}

// wideColumns is the maximum width of wide tables in pipes and on narrower terminals.
const wideColumns = 160

// Room returns the maximum width of a table, or 0 if there is no limit. in is the table's
// indentation in columns.
func (p *Printer) Room(in int) int {
	switch {
	case p.Format == FormWide:
		return max(p.Width, wideColumns) - in
	case p.Width == 0:
		return 0
	}
	return p.Width - in
}

// LineWidth returns the maximum width of a line of text. Lines are not wrapped if stdout is not a
// terminal.
func (p *Printer) LineWidth() int {
	if p.Width == 0 {
		return math.MaxInt
	}
	return p.Width - 1
}

// PrintJSON writes v as indented JSON, or in a format that is derived from JSON.
func (p *Printer) PrintJSON(v any) error {
	text, err := p.Encode(v, "  ")
	if err != nil {
		return err
	}
	return p.Print(text)
}

// Encode returns v as JSON, or in a format that is derived from JSON.
func (p *Printer) Encode(v any, indent string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return "", fmt.Errorf("writing JSON: %w", err)
	}
	if p.Remake == nil {
		return b.String(), nil
	}
	var doc yaml.Node // JSON is YAML
	if err := yaml.Unmarshal(b.Bytes(), &doc); err != nil {
		return "", fmt.Errorf("converting the output from JSON: %w", err)
	}
	return p.Remake(doc.Content[0])
}

// Paint colors text if stdout may have colors.
func (p *Printer) Paint(text string, s table.Style) string {
	if !p.Color {
		return text
	}
	return table.Paint(text, s)
}

// Say writes a sentence to stderr that is not part of the output.
func (p *Printer) Say(format string, args ...any) { fmt.Fprintf(p.Stderr, format+"\n", args...) }

// Note writes a message from vipctl to stderr, in addition to the output.
func (p *Printer) Note(format string, args ...any) {
	fmt.Fprintf(p.Stderr, "vipctl: %s\n", table.Line(OneLine(fmt.Sprintf(format, args...))))
}

// Hint writes a note to stderr about an unexpected effect of a verb that succeeds.
func (p *Printer) Hint(format string, args ...any) {
	fmt.Fprintf(p.Stderr, "note: %s\n", table.Line(fmt.Sprintf(format, args...)))
}

// These formats are derived from a verb's JSON. Each verb with -o json supports them.
const (
	formYAML = "yaml"
	// formPath is the start of a template in kubectl's syntax: text in which {PATH} is replaced
	// with the result of a JSONPath expression.
	formPath = "jsonpath="
)

func (v *Verb) forms() []string {
	if !slices.Contains(v.Formats, FormJSON) {
		return v.Formats
	}
	return append(slices.Clone(v.Formats), formYAML, formPath+"TEMPLATE")
}

// choose sets the output format. For a format derived from JSON, verbs see FormJSON. If a verb has
// tables but no wide form, it sees FormTable instead of FormWide, because its tables already have
// all columns.
func (p *Printer) choose(v *Verb, form string) error {
	template, isPath := strings.CutPrefix(form, formPath)
	switch made := slices.Contains(v.Formats, FormJSON); {
	case made && form == formYAML:
		p.Format, p.Remake = FormJSON, asYAML
	case made && isPath:
		t, err := parseTemplate(template)
		if err != nil {
			return WrongUse("-o %s%v", formPath, err)
		}
		p.Format, p.Remake = FormJSON, t.text
	case slices.Contains(v.Formats, form):
		p.Format = form
	case form == FormWide && slices.Contains(v.Formats, FormTable):
		p.Format = FormTable
	default:
		return WrongUse("-o %q is not possible here; use %s", form, wording.List(v.forms(), "or"))
	}
	return nil
}

// asYAML formats a YAML document. It preserves the fields' order.
func asYAML(doc *yaml.Node) (string, error) {
	plain(doc)
	b := bytes.NewBufferString("---\n")
	e := yaml.NewEncoder(b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		return "", fmt.Errorf("writing YAML: %w", err)
	}
	return b.String(), e.Close()
}

// plain removes JSON's brackets and quotation marks from a document. Empty values keep their
// brackets.
func plain(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode || len(n.Content) > 0 {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}
