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
)

// maxNoted is the maximum number of bytes that a transcript contains in each direction.
const maxNoted = 8 << 10

// transcript records a conversation for users. A nil transcript records nothing. Lines start with
// "* " for events, "> " for sent data and "< " for received data.
type transcript struct {
	secrets  []string
	hideSent bool // show only the size of sent data

	mu    sync.Mutex // one goroutine may read while another writes
	parts []part
	noted [2]int // numbers of bytes sent and received
}

// part is a piece of data in one direction, or an event.
type part struct {
	mark byte // '*', '>' or '<'
	data []byte
}

func (t *transcript) note(format string, args ...any) {
	if t != nil {
		t.add('*', fmt.Appendf(nil, format, args...))
	}
}

// data records sent data (mark '>') or received data (mark '<').
func (t *transcript) data(mark byte, data []byte) {
	if t == nil || len(data) == 0 {
		return
	}
	if mark == '>' && t.hideSent {
		t.add(mark, fmt.Appendf(nil, "(%s)", size(len(data))))
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

// wayOf returns the index of a mark in transcript.noted.
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

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, p := range t.parts {
		for line := range strings.Lines(t.text(p)) {
			fmt.Fprintf(&b, "%c %s\n", p.mark, strings.TrimRight(line, "\r\n"))
		}
	}
	for way, what := range []string{"sent", "received"} {
		if t.noted[way] > maxNoted {
			fmt.Fprintf(&b, "* only the first %d of %d bytes %s are shown\n", maxNoted, t.noted[way], what)
		}
	}
	return b.String()
}

// text returns a part's data unchanged if it is printable, and otherwise as a hex dump.
func (t *transcript) text(p part) string {
	data := t.masked(p)
	text := string(data)
	for cut := 0; cut < utf8.UTFMax && !utf8.ValidString(text) && text != ""; cut++ {
		text = text[:len(text)-1] // the limit may cut a character in two
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\r\n\t", r) }) {
		return hex.Dump(data)
	}
	return text
}

// masked returns a part's data without secrets. It also hides the start of a secret that the size
// limit cuts in two.
func (t *transcript) masked(p part) []byte {
	data := withoutSecrets(p.data, t.secrets)
	if p.mark == '*' || t.noted[wayOf(p.mark)] <= maxNoted {
		return data
	}
	for _, s := range t.secrets {
		for n := len(s) - 1; n > 0; n-- {
			if rest, ends := bytes.CutSuffix(data, []byte(s[:n])); ends {
				return append(slices.Clone(rest), Hidden...)
			}
		}
	}
	return data
}

// record returns c or, if a transcript is requested, a connection that also records c's data.
func (a *attempt) record(c net.Conn) net.Conn {
	if a.notes == nil {
		return c
	}
	return &recorded{c, a.notes}
}

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
