package convert

import (
	"fmt"
	"slices"
	"strings"
)

// statement is a statement in a format with blocks. It consists of words, optionally followed by a
// block of statements in braces.
type statement struct {
	words    []string
	line     int
	block    bool
	children []*statement
	// doubt is the reason why the statement may be invalid or incomplete. Services that depend on
	// the statement are disabled.
	doubt string
}

// word returns the nth word, or "" if the statement has fewer words.
func (n *statement) word(i int) string {
	if i < len(n.words) {
		return n.words[i]
	}
	return ""
}

// is reports whether the statement starts with words.
func (n *statement) is(words ...string) bool {
	return len(n.words) >= len(words) && slices.Equal(n.words[:len(words)], words)
}

func (n *statement) rest(i int) []string { return n.words[min(i, len(n.words)):] }

// doubts returns the doubtful statements, including statements in blocks.
func doubts(all ...*statement) []*statement {
	var out []*statement
	for _, n := range all {
		if n.doubt != "" {
			out = append(out, n)
		}
		out = append(out, doubts(n.children...)...)
	}
	return out
}

// disableDoubted disables a service that depends on doubtful statements.
func (d *draft) disableDoubted(s *service, doubtful []*statement) {
	for _, n := range doubtful {
		d.disable(s, n.line, "%s", n.doubt)
	}
}

// sourceLine is a configuration line in which variables have been replaced.
type sourceLine struct {
	text string
	// line is the line's number in the origin.
	line int
	// doubt is the doubt about all statements on the line, or "".
	doubt string
}

// sourceLines returns the origin's lines unchanged.
func (d *draft) sourceLines() []sourceLine {
	out := make([]sourceLine, len(d.lines))
	for i, text := range d.lines {
		out[i] = sourceLine{text: text, line: i + 1}
	}
	return out
}

// maxDepth is the maximum depth of nested blocks.
const maxDepth = 64

// blocks parses statements with braces. A statement ends with its line or, if semicolons is true,
// with a semicolon. Words may be in quotes. A word that starts with one of the characters in
// comments starts a comment.
type blocks struct {
	d          *draft
	lines      []sourceLine
	text       string
	at, index  int
	comments   string
	semicolons bool
	// doubt is the reason why the last token may be wrong.
	doubt string
}

// parseBlocks parses lines into statements. After a syntax error, it adds a note and sets the
// statement's doubt.
func (d *draft) parseBlocks(lines []sourceLine, comments string, semicolons bool) []*statement {
	if len(lines) == 0 {
		return nil
	}
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.text
	}
	b := &blocks{d: d, lines: lines, text: strings.Join(texts, "\n"), comments: comments, semicolons: semicolons}
	var out []*statement
	for {
		more, closed := b.statements(0)
		out = append(out, more...)
		if !closed {
			return out
		}
		d.note(b.line().line, "left out: the brace closes a block that was not opened")
	}
}

func (b *blocks) line() sourceLine { return b.lines[min(b.index, len(b.lines)-1)] }

type tokenKind int

const (
	wordToken tokenKind = iota
	endOfLine
	endOfText
	semicolon
	openingBrace
	closingBrace
)

// statements reads the statements up to a closing brace, and reports whether it found that brace.
func (b *blocks) statements(depth int) (out []*statement, closed bool) {
	var current *statement
	finish := func() {
		if current != nil {
			out = append(out, current)
		}
		current = nil
	}
	for {
		source := b.line()
		token, kind := b.token()
		switch kind {
		case endOfText, closingBrace:
			finish()
			return out, kind == closingBrace
		case endOfLine:
			if !b.semicolons {
				finish()
			}
		case semicolon:
			finish()
		case openingBrace:
			if n := len(out); current == nil && n > 0 && !out[n-1].block {
				current, out = out[n-1], out[:n-1] // the brace is on its own line
			}
			if current == nil {
				current = &statement{line: source.line, doubt: source.doubt}
			}
			b.block(current, source.line, depth)
			finish()
		case wordToken:
			if current == nil {
				current = &statement{line: source.line, doubt: source.doubt}
			}
			current.words = append(current.words, token)
			if b.doubt != "" {
				current.doubt = b.doubt
			}
		}
	}
}

// block reads a statement's block, after the opening brace.
func (b *blocks) block(n *statement, line, depth int) {
	n.block = true
	if len(n.words) == 0 {
		b.d.note(line, "left out: the block has no name")
	}
	if depth >= maxDepth {
		b.d.note(line, "left out: blocks are nested more than %d levels deep", maxDepth)
		n.doubt = fmt.Sprintf("its blocks are nested more than %d levels deep", maxDepth)
		b.skipBlock()
		return
	}
	closed := false
	if strings.HasSuffix(n.word(0), "_by_lua_block") {
		closed = b.skipLua()
	} else {
		n.children, closed = b.statements(depth + 1)
	}
	if !closed {
		n.doubt = "the block has no closing brace"
		b.d.note(line, "the block that begins here has no closing brace")
	}
}

// skipBlock skips to a block's closing brace.
func (b *blocks) skipBlock() {
	for depth := 1; depth > 0; {
		switch _, kind := b.token(); kind {
		case openingBrace:
			depth++
		case closingBrace:
			depth--
		case endOfText:
			return
		}
	}
}

// token reads the next token. It returns a word without its quotes.
func (b *blocks) token() (string, tokenKind) {
	b.doubt = ""
	for b.at < len(b.text) {
		c := b.text[b.at]
		switch {
		case c == '\n':
			b.at++
			b.index++
			return "", endOfLine
		case c <= ' ':
			b.at++
		case strings.IndexByte(b.comments, c) >= 0:
			b.skipLine()
		case c == '{' || c == '}' || c == ';' && b.semicolons:
			b.at++
			return "", map[byte]tokenKind{'{': openingBrace, '}': closingBrace, ';': semicolon}[c]
		case c == '"' || c == '\'' && b.semicolons:
			return b.quoted(c), wordToken
		default:
			return b.bare(), wordToken
		}
	}
	return "", endOfText
}

func (b *blocks) skipLine() {
	if end := strings.IndexByte(b.text[b.at:], '\n'); end >= 0 {
		b.at += end
	} else {
		b.at = len(b.text)
	}
}

// quoted reads text in quotes. In keepalived's files, the text ends with the line. In nginx's
// files, it may span several lines.
func (b *blocks) quoted(quote byte) string {
	start := b.line().line
	var out strings.Builder
	for b.at++; b.at < len(b.text); b.at++ {
		c := b.text[b.at]
		switch {
		case c == quote:
			b.at++
			return out.String()
		case c == '\n' && !b.semicolons:
			b.unclosed(start)
			return out.String()
		case c == '\\' && b.at+1 < len(b.text) && (b.text[b.at+1] == quote || b.text[b.at+1] == '\\'):
			b.at++
			c = b.text[b.at]
		case c == '\n':
			b.index++
		}
		out.WriteByte(c)
	}
	b.unclosed(start)
	return out.String()
}

func (b *blocks) unclosed(line int) {
	b.doubt = "the quotes that open here are not closed"
	b.d.note(line, "%s", b.doubt)
}

// bare reads an unquoted word. The braces of ${name} are part of the word.
func (b *blocks) bare() string {
	start, variable := b.at, false
	for ; b.at < len(b.text); b.at++ {
		c := b.text[b.at]
		if c == '{' && b.at > start && b.text[b.at-1] == '$' {
			variable = true
			continue
		}
		if c == '}' && variable {
			variable = false
			continue
		}
		if c <= ' ' || c == '{' || c == '}' || c == ';' && b.semicolons {
			break
		}
	}
	return b.text[start:b.at]
}

// skipLua skips a Lua program and the brace that closes its block. It reports whether it found that
// brace.
func (b *blocks) skipLua() bool {
	for depth := 1; b.at < len(b.text); b.at++ {
		rest := b.text[b.at:]
		switch c := rest[0]; {
		case strings.HasPrefix(rest, "--[["), strings.HasPrefix(rest, "[["):
			b.skipTo("]]")
		case strings.HasPrefix(rest, "--"):
			b.skipLine()
			b.at--
		case c == '"' || c == '\'':
			b.skipLuaString(c)
		case c == '\n':
			b.index++
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				b.at++
				return true
			}
		}
	}
	return false
}

// skipTo skips to the last byte of the next occurrence of end, or to the end of the text.
func (b *blocks) skipTo(end string) {
	n := strings.Index(b.text[b.at:], end)
	if n < 0 {
		n = len(b.text) - b.at
	}
	b.index += strings.Count(b.text[b.at:min(len(b.text), b.at+n)], "\n")
	b.at += n + len(end) - 1
}

// skipLuaString skips to the closing quote of a string, or to the end of the line if there is none.
func (b *blocks) skipLuaString(quote byte) {
	for b.at++; b.at < len(b.text) && b.text[b.at] != quote; b.at++ {
		if b.text[b.at] == '\n' {
			b.index++
			return
		}
		if b.text[b.at] == '\\' {
			b.at++
		}
	}
}
