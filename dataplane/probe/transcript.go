package probe

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"vipd/balancer"
)

// maxNoted is how much is noted of what goes either way.
const maxNoted = 8 << 10

// transcript notes a conversation for people. A nil one notes nothing. Lines begin with "* " for what happened, "> " for
// what was sent and "< " for what was received.
type transcript struct {
	secrets []string

	mu    sync.Mutex // a conversation may be read and written by two goroutines
	parts []part
	noted [2]int // bytes so far, sent and received
}

// part is a piece of the conversation that went one way.
type part struct {
	mark byte // '*', '>' or '<'
	data []byte
}

func (t *transcript) note(format string, args ...any) {
	if t != nil {
		t.add('*', fmt.Appendf(nil, format, args...))
	}
}

// data notes what was sent ('>') or received ('<').
func (t *transcript) data(mark byte, data []byte) {
	if t == nil || len(data) == 0 {
		return
	}
	way := wayOf(mark)
	t.mu.Lock()
	room := maxNoted - t.noted[way]
	t.noted[way] += len(data)
	t.mu.Unlock()
	if room > 0 {
		t.add(mark, data[:min(room, len(data))])
	}
}

// wayOf is the place of a mark in transcript.noted.
func wayOf(mark byte) int {
	if mark == '<' {
		return 1
	}
	return 0
}

func (t *transcript) add(mark byte, data []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.parts); n > 0 && mark != '*' && t.parts[n-1].mark == mark {
		t.parts[n-1].data = append(t.parts[n-1].data, data...)
		return
	}
	t.parts = append(t.parts, part{mark, slices.Clone(data)})
}

// String writes the conversation.
func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, p := range t.parts {
		for line := range strings.Lines(t.readable(p)) {
			fmt.Fprintf(&b, "%c %s\n", p.mark, strings.TrimRight(line, "\r\n"))
		}
	}
	for way, what := range []string{"sent", "received"} {
		if t.noted[way] > maxNoted {
			fmt.Fprintf(&b, "* %d of %d bytes %s are shown\n", maxNoted, t.noted[way], what)
		}
	}
	return b.String()
}

// readable is the data as text where it is text, else as a hex dump.
func (t *transcript) readable(p part) string {
	data := t.masked(p)
	text := string(data)
	for cut := 0; cut < utf8.UTFMax && !utf8.ValidString(text) && text != ""; cut++ {
		text = text[:len(text)-1] // a character may be cut in two where the bound is
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\r\n\t", r) }) {
		return hex.Dump(data)
	}
	return text
}

// masked is the data without secrets, also without the beginning of one that is cut in two where the bound is.
func (t *transcript) masked(p part) []byte {
	const instead = "(hidden)"
	data := p.data
	for _, s := range t.secrets {
		data = bytes.ReplaceAll(data, []byte(s), []byte(instead))
	}
	if p.mark == '*' || t.noted[wayOf(p.mark)] <= maxNoted {
		return data
	}
	for _, s := range t.secrets {
		for n := len(s) - 1; n > 0; n-- {
			if rest, ends := bytes.CutSuffix(data, []byte(s[:n])); ends {
				return append(slices.Clone(rest), instead...)
			}
		}
	}
	return data
}

// secretsOf returns the values of headers that are secret.
func secretsOf(h *balancer.Health) []string {
	var values []string
	for name, value := range h.Headers {
		if value != "" && Secret(name) {
			values = append(values, value)
		}
	}
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) }) // the longer first: it may hold a shorter
	return values
}

// record returns c, noting what goes over it where a transcript is kept.
func (a *attempt) record(c net.Conn) net.Conn {
	if a.notes == nil {
		return c
	}
	return &recorded{c, a.notes}
}

// recorded notes what goes over a connection.
type recorded struct {
	net.Conn
	notes *transcript
}

func (r *recorded) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.notes.data('<', p[:n])
	return n, err
}

func (r *recorded) Write(p []byte) (int, error) {
	n, err := r.Conn.Write(p)
	r.notes.data('>', p[:n])
	return n, err
}
