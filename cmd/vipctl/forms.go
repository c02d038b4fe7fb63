package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

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
		return wrongUse("-o %q is not possible here; it can be %s", form, choices(v.forms()))
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
