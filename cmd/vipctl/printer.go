package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

// The forms of output.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formTOML  = "toml"
	formName  = "name"
)

// printer writes what a verb has to say, in the form that was asked for.
type printer struct {
	world
	// format is the form of the output, one of the verb's.
	format string
	// fleetWide: services and endpoints are shown as etcd has them, without what only a host knows.
	fleetWide bool
	// remake makes the output of JSON; nil means JSON itself.
	remake func(*yaml.Node) (string, error)
}

// print writes text to stdout.
func (p *printer) print(text string) error {
	if _, err := io.WriteString(p.stdout, text); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

// show writes v as JSON where that is asked for, or else the text.
func (p *printer) show(v any, text func() string) error {
	if p.format == formJSON {
		return p.printJSON(v)
	}
	return p.print(text())
}

// printTable writes a table in the form asked for, or, where it has no rows, the sentence to stderr.
func (p *printer) printTable(t *table.Table, empty string) error {
	if t.Len() == 0 {
		p.say("%s", empty)
		return nil
	}
	return p.print(t.Text(p.form()))
}

// form is how tables are printed.
func (p *printer) form() table.Form {
	return table.Form{Wide: p.format == formWide, Color: p.color, Width: p.room(0)}
}

// printRows writes rows as JSON where that is asked for, or else as a table.
func (p *printer) printRows(rows any, t *table.Table, empty string) error {
	if p.format == formJSON {
		return p.printJSON(rows)
	}
	return p.printTable(t, empty)
}

// room is how wide a table may be that is moved in by so much; 0 means as wide as it is. Only a user at a terminal can ask for
// more.
func (p *printer) room(in int) int {
	if p.width == 0 || p.format == formWide {
		return 0
	}
	return p.width - in
}

// printJSON writes v as the API gives it, indented, or what is made of that.
func (p *printer) printJSON(v any) error {
	text, err := p.encode(v, "  ")
	if err != nil {
		return err
	}
	return p.print(text)
}

// encode is v as JSON, or what is made of that.
func (p *printer) encode(v any, indent string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return "", fmt.Errorf("writing JSON: %w", err)
	}
	if p.remake == nil {
		return b.String(), nil
	}
	var doc yaml.Node // JSON is YAML
	if err := yaml.Unmarshal(b.Bytes(), &doc); err != nil {
		return "", fmt.Errorf("reading the JSON of the output: %w", err)
	}
	return p.remake(doc.Content[0])
}

// paint colours text where colours are wanted.
func (p *printer) paint(text string, s table.Style) string {
	if !p.color {
		return text
	}
	return table.Paint(text, s)
}

// say writes a sentence to stderr where there is nothing to print.
func (p *printer) say(format string, args ...any) { fmt.Fprintf(p.stderr, format+"\n", args...) }

// note writes a message to stderr, beside the output.
func (p *printer) note(format string, args ...any) {
	fmt.Fprintf(p.stderr, "vipctl: %s\n", table.Line(oneLine(fmt.Sprintf(format, args...))))
}

// hint says what a user may not expect of a verb that succeeds.
func (p *printer) hint(format string, args ...any) {
	fmt.Fprintf(p.stderr, "note: %s\n", table.Line(fmt.Sprintf(format, args...)))
}

// list returns s, or an empty list where it is nil: JSON shows [] then, not null.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// Forms that are made of a verb's JSON: each verb that has -o json has them.
const (
	formYAML = "yaml"
	// formPath begins a template of kubectl's kind: text, in which {PATH} is replaced by what JSONPath finds.
	formPath = "jsonpath="
)

// forms are the values of -o.
func (v *verb) forms() []string {
	if !slices.Contains(v.formats, formJSON) {
		return v.formats
	}
	return append(slices.Clone(v.formats), formYAML, formPath+"TEMPLATE")
}

// choose sets the form of the output. What is made of JSON is formJSON to verbs.
func (p *printer) choose(v *verb, form string) error {
	template, isPath := strings.CutPrefix(form, formPath)
	switch made := slices.Contains(v.formats, formJSON); {
	case made && form == formYAML:
		p.format, p.remake = formJSON, asYAML
	case made && isPath:
		t, err := parseTemplate(template)
		if err != nil {
			return wrongUse("-o %s%v", formPath, err)
		}
		p.format, p.remake = formJSON, t.text
	case slices.Contains(v.formats, form):
		p.format = form
	default:
		return wrongUse("-o %q is not possible here; it can be %s", form, wording.List(v.forms(), "or"))
	}
	return nil
}

// asYAML is a document of YAML, with the fields in their order.
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

// plain takes JSON's brackets and quotation marks from a document; what is empty keeps its brackets.
func plain(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode || len(n.Content) > 0 {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}
