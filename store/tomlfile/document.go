package tomlfile

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"

	"vipd/balancer"
)

// Document is a parsed TOML text with its content and the line number of each key and array
// element. It is safe for concurrent use.
type Document struct {
	file string
	text string
	tree map[string]any
	// top and all return line numbers, which a separate scanner finds on demand. top covers paths
	// of up to topDepth parts, and all covers every path.
	top, all func() map[string]mark
}

// topDepth is the number of parts of services.NAME.
const topDepth = 2

// mark is the line number of a path. If defined is false, the line does not define the path itself
// but something below it: [a.b] is a mark of the path a.
type mark struct {
	line    int32
	defined bool
}

// Parse parses TOML. The file name is used only in origins. If the TOML is invalid, Parse returns
// one problem and no document.
func Parse(file string, text []byte) (*Document, []balancer.Problem) {
	d := &Document{file: file, text: string(text)}
	if why, line := excess(d.text); why != "" {
		return nil, []balancer.Problem{tooMuch(file, why, line)}
	}
	if _, err := toml.Decode(d.text, &d.tree); err != nil {
		return nil, []balancer.Problem{syntaxProblem(file, d.text, err)}
	}
	d.top = sync.OnceValue(func() map[string]mark { return lines(d.text, topDepth) })
	d.all = sync.OnceValue(func() map[string]mark { return lines(d.text, 0) })
	return d, nil
}

// settings returns d without services and address settings. The result does not keep the text in
// memory.
func (d *Document) settings() *Document {
	tree := maps.Clone(d.tree)
	delete(tree, "services")
	delete(tree, "vips")
	marks := lines(d.text, 0, "services", "vips")
	out := &Document{file: d.file, tree: interner{}.table(tree)}
	out.top = func() map[string]mark { return marks }
	out.all = out.top
	return out
}

// same reports whether two documents have the same content on the same lines.
func (d *Document) same(other *Document) bool {
	return d.file == other.file && reflect.DeepEqual(d.tree, other.tree) && maps.Equal(d.all(), other.all())
}

func syntaxProblem(file, text string, err error) balancer.Problem {
	p := balancer.Problem{Severity: balancer.SeverityError, Origin: balancer.Origin{File: file}}
	message := err.Error()
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		// If the parser fails at the end of a line, it reports the next line. Its offset is
		// correct, but does not include a byte order mark.
		start := min(len(bom(text))+max(0, parse.Position.Start), len(text))
		p.Origin.Line = 1 + strings.Count(text[:start], "\n")
		message = parse.Message
		if value := unquoted(text, start); value != "" {
			message = fmt.Sprintf("%s needs quotes: %q", value, value)
		}
	}
	message = strings.ReplaceAll(strings.TrimSuffix(message, "."), "Key '", "key '")
	p.Text = "not valid TOML: " + strings.NewReplacer("\n", `\n`, "\r", `\r`, `'\x00'`, "the end of the file").Replace(message)
	return p
}

// unquoted returns the value at an offset in text if the value needs quotes but has none: an
// address with or without a port, a network, or a duration. Otherwise it returns "".
func unquoted(text string, at int) string {
	isValue := func(b byte) bool {
		return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == ':' || b == '/'
	}
	start, end := at, at
	for start > 0 && isValue(text[start-1]) {
		start--
	}
	for end < len(text) && isValue(text[end]) {
		end++
	}
	value := text[start:end]
	if strings.ContainsAny(text[max(start-1, 0):start]+text[end:min(end+1, len(text))], "\"'") {
		return ""
	}
	_, notAddr := netip.ParseAddr(value)
	_, notPrefix := netip.ParsePrefix(value)
	_, notAddrPort := netip.ParseAddrPort(value)
	_, notTime := time.ParseDuration(value)
	if notAddr != nil && notPrefix != nil && notAddrPort != nil && notTime != nil || value == "0" {
		return ""
	}
	return value
}

// bom returns the byte order mark at the start of text, in UTF-8 or UTF-16, or "". The parser skips
// it.
func bom(text string) string {
	for _, mark := range []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"} {
		if strings.HasPrefix(text, mark) {
			return mark
		}
	}
	return ""
}

// File returns the name of the document's file.
func (d *Document) File() string { return d.file }

// Folder returns the directory of the document's file. The path is absolute if this program has a
// working directory. Paths in the document are relative to it.
func (d *Document) Folder() string {
	if path, err := filepath.Abs(d.file); err == nil {
		return filepath.Dir(path)
	}
	return filepath.Dir(d.file)
}

// Tree returns the document's content in the form that decode.Into accepts. The caller must not
// modify it.
func (d *Document) Tree() map[string]any { return d.tree }

// Where returns the file and line of a path such as services.web.endpoints[2].weight. Names that
// are not plain words must be quoted, as in package decode. For a missing path, it returns the line
// of the nearest parent. The path "" has no line.
func (d *Document) Where(path string) balancer.Origin {
	origin := balancer.Origin{File: d.file}
	marks := d.top
	if strings.Count(path, ".")+strings.Count(path, "[") >= topDepth {
		marks = d.all
	}
	for ; path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if m, ok := marks()[path]; ok {
			origin.Line = int(m.line)
			break
		}
	}
	return origin
}

// Under returns a Locator for paths relative to the table at base.
func (d *Document) Under(base string) balancer.Locator {
	return func(path string) balancer.Origin {
		if path == "" {
			return d.Where(base)
		}
		return d.Where(base + "." + path)
	}
}

// lines returns the line number of each path in text that has at most depth parts, or of all paths
// if depth is 0. It skips paths inside the tables in without.
func lines(text string, depth int, without ...string) map[string]mark {
	marks := map[string]mark{}
	s := scanner{text: text, depth: depth, counts: map[string]int{}}
	s.visit = func(path []byte, line int, defined bool) {
		for _, name := range without {
			if n := len(name); len(path) > n && path[n] == '.' && string(path[:n]) == name {
				return
			}
		}
		// The line of an array of tables is the line of its first element. The line of a table is
		// the line of its own header.
		if m, known := marks[string(path)]; !known || defined && !m.defined {
			marks[string(path)] = mark{int32(line), defined}
		}
	}
	s.scan()
	return marks
}

// isBareByte reports whether keys without quotes may contain c.
func isBareByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// These limits apply to each text. The parser keeps all parents of each key, so nested tables in 48
// kB of text need 8 GB of memory, and a million keys need 2 to 4 GB. A text that exceeds a limit is
// rejected before it is parsed.
const (
	// maxNested is the maximum depth of arrays and inline tables. maxParts is the maximum number of
	// parts in a value's path.
	maxNested = 64
	maxParts  = maxNested + 16
	// maxKeys is the maximum number of keys and array elements in a text. It is sufficient for
	// about 20,000 services with 10 endpoints each.
	maxKeys = 500_000
)

// excess returns the limit that a text exceeds, and the line that exceeds it. It returns "" if the
// text exceeds no limit.
func excess(text string) (why string, line int) {
	if len(text) > maxSize {
		return fmt.Sprintf("is larger than %d MiB; split it", maxSize>>20), 0
	}
	s := scanner{text: text, counts: map[string]int{}}
	n := 0
	s.visit = func(_ []byte, at int, _ bool) {
		n++
		switch {
		case why != "":
			return
		case s.nested > maxNested || s.parts > maxParts:
			why, line = fmt.Sprintf("nests values more than %d levels deep", maxNested), at
		case n > maxKeys:
			why, line = fmt.Sprintf("has more than %d keys and list elements; split it: store.path may name a folder", maxKeys), at
		default:
			return
		}
		s.pos = len(text)
	}
	s.scan()
	return why, line
}

func tooMuch(file, why string, line int) balancer.Problem {
	return balancer.Problem{Severity: balancer.SeverityError, Origin: balancer.Origin{File: file, Line: line}, Text: why}
}

// Decode decodes TOML into a struct, for callers that need only some of its keys. It ignores other
// keys. It has the same limits as Parse.
func Decode(file string, text []byte, into any) error {
	if why, line := excess(string(text)); why != "" {
		return errors.New(tooMuch(file, why, line).String())
	}
	err := toml.Unmarshal(text, into)
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[toml.ParseError](err); ok {
		return errors.New(syntaxProblem(file, string(text), err).String())
	}
	return fmt.Errorf("%s: %w", file, err)
}

// DecodeLines decodes the lines of a TOML text that contain key into a struct, each line together
// with the heading above it. The text need not be valid as a whole. Unreadable lines are skipped.
func DecodeLines(text []byte, key string, into any) {
	heading := ""
	for line := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) {
		if strings.HasPrefix(strings.TrimSpace(line), "[") {
			heading = line
		} else if strings.Contains(line, key) {
			_ = Decode("", []byte(heading+line), into) // an unreadable line is skipped
		}
	}
}
