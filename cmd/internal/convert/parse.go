package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// statement is a statement of a format with blocks: words, and what stands in braces behind them.
type statement struct {
	words    []string
	line     int
	block    bool
	children []*statement
}

// word is the nth word; "" where there are fewer.
func (n *statement) word(i int) string {
	if i < len(n.words) {
		return n.words[i]
	}
	return ""
}

// is reports whether the statement begins with the words.
func (n *statement) is(words ...string) bool {
	return len(n.words) >= len(words) && slices.Equal(n.words[:len(words)], words)
}

// size counts the statement and the statements in its block.
func (n *statement) size() int {
	out := 1
	for _, c := range n.children {
		out += c.size()
	}
	return out
}

// rest are the words from the nth on.
func (n *statement) rest(i int) []string { return n.words[min(i, len(n.words)):] }

// maxDepth bounds how deep blocks nest.
const maxDepth = 64

// blocks parses statements with braces. A statement ends with its line, or with a semicolon where semicolons is true.
// Words may be in quotes; a word that begins with one of comments begins a comment.
type blocks struct {
	d          *draft
	text       string
	at, line   int
	comments   string
	semicolons bool
}

func (d *draft) parseBlocks(comments string, semicolons bool) ([]*statement, error) {
	b := &blocks{d: d, text: strings.Join(d.lines, "\n"), line: 1, comments: comments, semicolons: semicolons}
	return b.statements(0, 0)
}

// statements reads up to the closing brace of the block that was opened on the line; 0 is the text itself.
func (b *blocks) statements(opened, depth int) ([]*statement, error) {
	var out []*statement
	var current *statement
	finish := func() {
		if current != nil {
			out = append(out, current)
		}
		current = nil
	}
	if depth > maxDepth {
		return nil, b.d.errorf(b.line, "blocks nest more than %d deep: is a closing brace missing above?", maxDepth)
	}
	for {
		line := b.line
		token, quoted, err := b.token()
		switch {
		case err != nil:
			return nil, err
		case token == "" && !quoted:
			finish()
			if opened > 0 {
				return nil, b.d.errorf(opened, "the block that begins here has no closing brace")
			}
			return out, nil
		case quoted:
		case token == "\n":
			if !b.semicolons {
				finish()
			}
			continue
		case token == ";" && b.semicolons:
			finish()
			continue
		case token == "{":
			if current == nil {
				if len(out) == 0 || out[len(out)-1].block {
					return nil, b.d.errorf(line, "a brace opens a block that has no name: write the name before it")
				}
				current, out = out[len(out)-1], out[:len(out)-1] // the brace stands on its own line
			}
			current.block = true
			if current.children, err = b.statements(line, depth+1); err != nil {
				return nil, err
			}
			finish()
			continue
		case token == "}":
			finish()
			if opened == 0 {
				return nil, b.d.errorf(line, "a brace closes a block that was not opened: take it out, or open the block above")
			}
			return out, nil
		}
		if current == nil {
			current = &statement{line: line}
		}
		current.words = append(current.words, token)
	}
}

// token reads the next word, brace, semicolon or end of line; "" at the end of the text.
func (b *blocks) token() (token string, quoted bool, err error) {
	for b.at < len(b.text) {
		c := b.text[b.at]
		switch {
		case c == '\n':
			b.at++
			b.line++
			return "\n", false, nil
		case c <= ' ':
			b.at++
		case strings.IndexByte(b.comments, c) >= 0:
			if end := strings.IndexByte(b.text[b.at:], '\n'); end >= 0 {
				b.at += end
			} else {
				b.at = len(b.text)
			}
		case c == '{' || c == '}' || c == ';' && b.semicolons:
			b.at++
			return string(c), false, nil
		case c == '"' || c == '\'' && b.semicolons:
			token, err = b.quoted(c)
			return token, true, err
		default:
			return b.bare(), false, nil
		}
	}
	return "", false, nil
}

// quoted reads text in quotes. In keepalived's files it ends with its line, in nginx's it may go on.
func (b *blocks) quoted(quote byte) (string, error) {
	start := b.line
	var out strings.Builder
	for b.at++; b.at < len(b.text); b.at++ {
		switch c := b.text[b.at]; {
		case c == quote:
			b.at++
			return out.String(), nil
		case c == '\\' && b.at+1 < len(b.text) && (b.text[b.at+1] == quote || b.text[b.at+1] == '\\'):
			b.at++
			out.WriteByte(b.text[b.at])
		case c == '\n':
			if !b.semicolons {
				return "", b.d.errorf(start, "the quotes that open here are not closed on this line")
			}
			b.line++
			out.WriteByte(c)
		default:
			out.WriteByte(c)
		}
	}
	return "", b.d.errorf(start, "the quotes that open here are not closed")
}

// bare reads a word without quotes. Braces are part of it in ${name}.
func (b *blocks) bare() string {
	start, variable := b.at, false
	for ; b.at < len(b.text); b.at++ {
		c := b.text[b.at]
		switch {
		case c == '{' && b.at > start && b.text[b.at-1] == '$':
			variable = true
			continue
		case c == '}' && variable:
			variable = false
			continue
		}
		if c <= ' ' || c == '{' || c == '}' || c == ';' && b.semicolons {
			break
		}
	}
	return b.text[start:b.at]
}

// parsePort reads a port from 1 to 65535.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port; 1 to 65535 are possible", plain(text))
	}
	return uint16(n), nil
}

// portRange reads PORT or FIRST-LAST. The form is how such a line is written, for the error.
func (d *draft) portRange(line int, text, form string) (first, last uint16, err error) {
	low, high, isRange := strings.Cut(text, "-")
	if first, err = parsePort(low); err != nil {
		return 0, 0, d.errorf(line, "%v: write %s", err, form)
	}
	if !isRange {
		return first, first, nil
	}
	if last, err = parsePort(high); err != nil || last < first || last-first > maxRange {
		return 0, 0, d.errorf(line, "%q is not a range of up to %d ports", plain(text), maxRange)
	}
	return first, last, nil
}

// parseAddr reads an address, which may be in brackets.
func parseAddr(text string) (netip.Addr, error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		text = strings.TrimSuffix(inner, "]")
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an address", plain(text))
	}
	return addr.Unmap(), nil
}

// splitPort splits HOST:PORT, [HOST]:PORT, HOST or :PORT. IPv6 addresses may come without brackets, the port is what
// follows the last colon then.
func splitPort(text string) (host, port string) {
	if strings.HasSuffix(text, "]") {
		return text, ""
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, ""
	}
	return text[:i], text[i+1:]
}

// parseSpan reads a time with units, such as 10s, 1m30s, 500ms, 1d; a number alone counts in unit.
func parseSpan(text string, unit time.Duration) (time.Duration, error) {
	const day, longest = 24 * time.Hour, 100 * 365 * 24 * time.Hour
	days, rest, hasDays := strings.Cut(text, "d")
	switch {
	case !hasDays:
		days, rest = "0", text
	case rest == "":
		rest = "0"
	}
	if _, err := strconv.ParseFloat(rest, 64); err == nil {
		rest += strings.TrimPrefix(unit.String(), "1")
	}
	n, errDays := strconv.ParseUint(days, 10, 16)
	span, err := time.ParseDuration(rest)
	span += time.Duration(n) * day
	if err != nil || errDays != nil || span < 0 || span > longest {
		return 0, fmt.Errorf("%q is not a time, such as 10s", plain(text))
	}
	return span, nil
}

// addresses returns the VIPs of a listener on every address, of one family or of both.
func (d *draft) addresses(line int, v4, v6 bool) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, a := range d.wildcard {
		if a.Is4() && v4 || !a.Is4() && v6 {
			out = append(out, a)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	kind := "an address"
	if !v6 {
		kind = "an IPv4 address"
	} else if !v4 {
		kind = "an IPv6 address"
	}
	return nil, d.errorf(line, "%q listens on every address of its host, and vipd needs the VIP: give %s with --vip ADDRESS", d.lineText(line), kind)
}

// listening returns the addresses that a listener on host has: host itself, or the VIPs of Options for a wildcard. v4 and v6 are
// the families of a wildcard that does not name one; "::" stands for IPv4, too, where both are true.
func (d *draft) listening(line int, host string, v4, v6 bool) ([]netip.Addr, error) {
	switch host {
	case "", "*":
		return d.addresses(line, v4, v6)
	case "0.0.0.0":
		return d.addresses(line, true, false)
	case "::", "[::]":
		return d.addresses(line, v4 && v6, true)
	case "localhost":
		host = "127.0.0.1"
	}
	addr, err := parseAddr(host)
	if err != nil {
		return nil, d.errorf(line, "%v; write the address that the name stands for", err)
	}
	return []netip.Addr{addr}, nil
}

// listeners are as one is, at each address that host stands for and each port of the range. The word begins such a line.
func (d *draft) listeners(one listener, host, ports, word string, v4, v6 bool) ([]listener, error) {
	first, last, err := d.portRange(one.line, ports, word+" ADDRESS:PORT")
	if err != nil {
		return nil, err
	}
	var out []listener
	addresses, err := d.listening(one.line, host, v4, v6)
	if err == nil {
		err = d.spend(one.line, len(addresses)*(int(last)-int(first)+1))
	}
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		for port := int(first); port <= int(last); port++ {
			out = append(out, listener{a, uint16(port), one.proto, one.line})
		}
	}
	return out, nil
}

// span reads a time that a line says, as parseSpan does; where it is none, it notes that and returns false.
func (d *draft) span(line int, text string, unit time.Duration) (span, bool) {
	t, err := parseSpan(text, unit)
	if err != nil {
		d.note(line, "%v", err)
	}
	return span{time: t, line: line}, err == nil
}

// host reads the address of an endpoint; where it is a name, it notes that and returns false.
func (d *draft) host(line int, text string) (netip.Addr, bool) {
	if text == "localhost" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
	}
	addr, err := parseAddr(text)
	if err != nil {
		d.note(line, "left out: endpoints have addresses, and %q is a name; write its address, or let the server join with \"vipctl register\"", plain(text))
		return addr, false
	}
	return addr, true
}
