package tomlfile

import (
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"vipd/balancer/decode"
)

// scanner scans valid TOML once, and reports the line of every key and array element. It neither
// checks nor converts values. On invalid text, it also terminates, but the lines are meaningless.
type scanner struct {
	text string
	// depth is the maximum number of parts in reported paths. Zero means no limit.
	depth int
	// visit is called with each path and its line, in the order of the text. defined reports
	// whether the path is defined on that line, or is only a parent. The path is valid only during
	// the call.
	visit func(path []byte, line int, defined bool)
	// counts maps each array of tables to its number of elements so far.
	counts map[string]int

	pos    int
	line   int
	path   []byte
	parts  int // number of parts in path
	nested int // depth of nested values
}

func (s *scanner) scan() {
	s.line, s.pos = 1, len(bom(s.text))
	base, parts := 0, 0
	for {
		s.blank()
		switch {
		case s.pos >= len(s.text):
			return
		case s.text[s.pos] == '[':
			s.path, s.parts = s.path[:0], 0
			s.header()
			base, parts = len(s.path), s.parts
		default:
			s.keyValue()
			s.path, s.parts = s.path[:base], parts
		}
	}
}

func (s *scanner) visitPath(defined bool) {
	if s.depth == 0 || s.parts <= s.depth {
		s.visit(s.path, s.line, defined)
	}
}

func (s *scanner) enterKey(key string) {
	s.path = decode.AppendName(s.path, key)
	s.parts++
}

func (s *scanner) enterIndex(i int) {
	s.path = append(s.path, '[')
	s.path = strconv.AppendInt(s.path, int64(i), 10)
	s.path = append(s.path, ']')
	s.parts++
}

// header reads [a.b] or [[a.b]], and sets the path to that table. If a part of the path is an array
// of tables, it refers to the last element of the array.
func (s *scanner) header() {
	s.pos++
	array := s.peek() == '['
	if array {
		s.pos++
	}
	for {
		s.space()
		s.enterKey(s.key())
		s.space()
		last := s.peek() != '.'
		if !last {
			s.pos++
			s.visitPath(false)
			if n := s.counts[string(s.path)]; n > 0 {
				s.enterIndex(n - 1)
			}
			continue
		}
		s.visitPath(true)
		if array {
			n := s.counts[string(s.path)]
			s.counts[string(s.path)] = n + 1
			s.enterIndex(n)
			s.visitPath(true)
		}
		break
	}
	for s.peek() == ']' {
		s.pos++
	}
}

// keyValue reads a.b = VALUE. The caller must reset the path afterwards.
func (s *scanner) keyValue() {
	start := s.pos
	for {
		s.space()
		s.enterKey(s.key())
		s.space()
		if s.peek() != '.' {
			break
		}
		s.pos++
		s.visitPath(false)
	}
	s.visitPath(true)
	if s.peek() == '=' {
		s.pos++
	}
	s.space()
	s.value()
	if s.pos == start {
		s.pos++ // a missing key is possible only in invalid text
	}
}

// value skips a value and reports the paths in it.
func (s *scanner) value() {
	switch s.peek() {
	case '"', '\'':
		s.skipString()
	case '[':
		s.inside(']', func(i int) {
			s.enterIndex(i)
			s.visitPath(true)
			s.value()
		})
	case '{':
		s.inside('}', func(int) { s.keyValue() })
	default:
		for s.pos < len(s.text) && strings.IndexByte(",]}#\n", s.text[s.pos]) < 0 {
			s.pos++
		}
	}
}

// inside reads an array or inline table up to its end. It calls the function element to read each
// element.
func (s *scanner) inside(end byte, element func(i int)) {
	base, parts := len(s.path), s.parts
	s.pos++
	if s.nested++; s.nested > maxNested+1 { // excess rejects such a text
		s.pos = len(s.text)
	}
	for i := 0; s.pos < len(s.text); {
		s.blank()
		switch s.peek() {
		case end:
			s.pos++
			s.nested--
			return
		case ',':
			s.pos++
			continue
		}
		before := s.pos
		element(i)
		s.path, s.parts = s.path[:base], parts
		i++
		if s.pos == before {
			s.pos++ // possible only in invalid text
		}
	}
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for c := s.peek(); c == ' ' || c == '\t'; c = s.peek() {
		s.pos++
	}
}

func (s *scanner) blank() {
	for {
		switch s.peek() {
		case '\n':
			s.line++
			s.pos++
		case ' ', '\t', '\r':
			s.pos++
		case '#':
			if i := strings.IndexByte(s.text[s.pos:], '\n'); i >= 0 {
				s.pos += i
			} else {
				s.pos = len(s.text)
			}
		default:
			return
		}
	}
}

// key reads a part of a key, which may be bare or quoted.
func (s *scanner) key() string {
	start := s.pos
	switch s.peek() {
	case '\'':
		s.skipString()
		return strings.Trim(s.text[start:s.pos], "'")
	case '"':
		s.skipString()
		if quoted := s.text[start:s.pos]; strings.Contains(quoted, `\`) {
			return unescape(quoted)
		}
		return strings.Trim(s.text[start:s.pos], `"`)
	}
	for isBareByte(s.peek()) {
		s.pos++
	}
	return s.text[start:s.pos]
}

// skipString skips a string of any kind, and counts its lines.
func (s *scanner) skipString() {
	quote := s.text[s.pos]
	fence := s.text[s.pos : s.pos+1]
	if strings.HasPrefix(s.text[s.pos:], `"""`) || strings.HasPrefix(s.text[s.pos:], "'''") {
		fence = s.text[s.pos : s.pos+3]
	}
	s.pos += len(fence)
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == '\\' && quote == '"':
			s.pos++ // the escaped character is skipped below, and counted if it ends a line
			if s.peek() == '\n' {
				s.line++
			}
			s.pos = min(s.pos+1, len(s.text))
			continue
		case c == '\n':
			s.line++
		case strings.HasPrefix(s.text[s.pos:], fence):
			s.pos += len(fence)
			// Up to two quotes may precede the closing three.
			for n := 0; len(fence) == 3 && n < 2 && s.peek() == quote; n++ {
				s.pos++
			}
			return
		}
		s.pos++
	}
}

// unescape decodes a quoted basic string like the parser.
func unescape(quoted string) string {
	var key struct{ Text string }
	if err := toml.Unmarshal([]byte("Text="+quoted), &key); err != nil {
		return quoted // possible only in invalid text
	}
	return key.Text
}
