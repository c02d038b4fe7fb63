package convert

import (
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// yamlNode is a node in a YAML document. The zero value is a missing node.
type yamlNode struct {
	node *yaml.Node
	// offset is the number of lines above the document.
	offset int
}

// documents parses the YAML documents in the text. If a document can't be parsed, it adds a note
// and continues with the next.
func (d *draft) documents() []yamlNode {
	var out []yamlNode
	start := 0
	for i := range len(d.lines) + 1 {
		if i < len(d.lines) && d.lines[i] != "---" && !strings.HasPrefix(d.lines[i], "--- ") {
			continue
		}
		if i > start {
			out = append(out, d.parseYAML(start, strings.Join(d.lines[start:i], "\n"))...)
		}
		start = i
	}
	return out
}

// yamlLine matches the line number in a YAML parser error.
var yamlLine = regexp.MustCompile(`^yaml: line ([0-9]+): `)

func (d *draft) parseYAML(offset int, text string) (out []yamlNode) {
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		root := &yaml.Node{}
		err := decoder.Decode(root)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			line, message := 1, strings.TrimPrefix(err.Error(), "yaml: ")
			if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
				line, _ = strconv.Atoi(m[1]) // the pattern matches only digits, so this can't fail
				message = err.Error()[len(m[0]):]
			}
			d.note(min(offset+max(1, line), len(d.lines)), "left out: this document is not valid YAML: %s", plain(message))
			return out
		}
		if len(root.Content) > 0 && root.Content[0].Tag != "!!null" {
			out = append(out, yamlNode{root.Content[0], offset})
		}
	}
}

// target returns the node to which an alias refers.
func (n yamlNode) target() *yaml.Node {
	node := n.node
	for i := 0; node != nil && node.Kind == yaml.AliasNode && i < maxDepth; i++ {
		node = node.Alias
	}
	return node
}

// get returns the node at a path of keys, or the zero node.
func (n yamlNode) get(keys ...string) yamlNode {
	for _, key := range keys {
		n = n.child(key, 0)
	}
	return n
}

func (n yamlNode) child(key string, depth int) yamlNode {
	node := n.target()
	if node == nil || node.Kind != yaml.MappingNode || depth > maxDepth {
		return yamlNode{}
	}
	merged := yamlNode{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		value := yamlNode{node.Content[i+1], n.offset}
		switch node.Content[i].Value {
		case key:
			return value
		case "<<":
			merged = value.child(key, depth+1)
		}
	}
	return merged
}

// list returns a sequence's elements.
func (n yamlNode) list() []yamlNode {
	node := n.target()
	if node == nil || node.Kind != yaml.SequenceNode {
		return nil
	}
	out := make([]yamlNode, len(node.Content))
	for i, c := range node.Content {
		out[i] = yamlNode{c, n.offset}
	}
	return out
}

// keys returns a mapping's keys.
func (n yamlNode) keys() []yamlNode {
	node := n.target()
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	var out []yamlNode
	for i := 0; i+1 < len(node.Content); i += 2 {
		out = append(out, yamlNode{node.Content[i], n.offset})
	}
	return out
}

// text returns a scalar's text, or "" for a node that is missing, null or not a scalar.
func (n yamlNode) text() string {
	if node := n.target(); node != nil && node.Kind == yaml.ScalarNode && node.Tag != "!!null" {
		return node.Value
	}
	return ""
}

// line returns the node's line, or 0 if the node is missing.
func (n yamlNode) line() int {
	if n.node == nil {
		return 0
	}
	return n.offset + n.node.Line
}
