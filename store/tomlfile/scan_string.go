package tomlfile

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// key reads one part of a key: bare, or in either kind of quotes.
func (s *scanner) key() string {
	start := s.pos
	switch s.peek() {
	case '\'':
		s.skipString()
		return strings.Trim(s.text[start:s.pos], "'")
	case '"':
		s.skipString()
		return unescape(strings.TrimSuffix(s.text[start+1:s.pos], `"`))
	}
	for isBareByte(s.peek()) {
		s.pos++
	}
	return s.text[start:s.pos]
}

// skipString skips a string of any of the four kinds, counting its lines.
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
			s.pos++ // what it escapes is skipped below, and counted if it is the end of a line
			if s.peek() == '\n' {
				s.line++
			}
			s.pos = min(s.pos+1, len(s.text))
			continue
		case c == '\n':
			s.line++
		case strings.HasPrefix(s.text[s.pos:], fence):
			s.pos += len(fence)
			// Up to two quotes may stand right before the closing three.
			for n := 0; len(fence) == 3 && n < 2 && s.peek() == quote; n++ {
				s.pos++
			}
			return
		}
		s.pos++
	}
}

// unescape resolves the escapes of a basic string.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		if text[0] != '\\' || len(text) < 2 {
			b.WriteByte(text[0])
			text = text[1:]
			continue
		}
		c := text[1]
		text = text[2:]
		if i := strings.IndexByte(`btnfre"\`, c); i >= 0 {
			b.WriteByte("\b\t\n\f\r\x1b\"\\"[i])
			continue
		}
		digits := min(map[byte]int{'x': 2, 'u': 4, 'U': 8}[c], len(text))
		n, err := strconv.ParseUint(text[:digits], 16, 32)
		if err != nil {
			continue
		}
		b.WriteRune(validRune(n))
		text = text[digits:]
	}
	return b.String()
}

func validRune(n uint64) rune {
	if n > utf8.MaxRune {
		return utf8.RuneError
	}
	return rune(n)
}
