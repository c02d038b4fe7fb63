package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// draft is a configuration that is being converted.
type draft struct {
	format, file string
	// lines holds the origin's lines; line n is lines[n-1].
	lines []string
	// answers holds the notes about words that have no equivalent in vipd.
	answers []answer
	// wildcard lists the VIPs for listeners without an address.
	wildcard []netip.Addr
	// mode is the mode closest to the origin, and modeWhy is the reason. If mode is "", auto is
	// used.
	mode, modeWhy string
	// unbound is the number of the line that leaves adding the VIPs to another program, or 0 if
	// vipd adds them.
	unbound  int
	services []*service
	// groups lists the VRRP groups. announce is the interval between announcements of the groups'
	// VIPs.
	groups   []*vrrpGroup
	announce *setting
	// empty is the reason why there are no services.
	empty string
	notes []Note
	noted map[Note]bool
	// names maps each service name to the last number that was appended to make it unique, or to 1
	// if no number was appended.
	names map[string]int
}

func newDraft(format, file, text string, o Options) *draft {
	return &draft{
		format: format, file: file, wildcard: o.VIPs,
		lines: strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n"),
		noted: map[Note]bool{}, names: map[string]int{},
	}
}

// lineText returns the text of line n, without characters that are not allowed in a TOML comment.
func (d *draft) lineText(n int) string {
	if n < 1 || n > len(d.lines) {
		return ""
	}
	return plain(d.lines[n-1])
}

// oneLine replaces line breaks in text, so it fits into a comment.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
}

// plain shortens text from the origin, and removes characters that are not allowed in a comment.
func plain(text string) string {
	const longest = 100
	text = oneLine(text)
	if runes := []rune(text); len(runes) > longest {
		text = string(runes[:longest]) + " ..."
	}
	return text
}

func (d *draft) errorf(line int, format string, args ...any) error {
	return &Error{File: d.file, Line: line, Text: fmt.Sprintf(format, args...)}
}

// note records that a line has no exact equivalent. The text describes vipd's behavior instead. A
// line that several services inherit gets only one note.
func (d *draft) note(line int, format string, args ...any) {
	n := d.newNote(line, format, args...)
	if !d.noted[n] {
		d.noted[n] = true
		d.notes = append(d.notes, n)
	}
}

func (d *draft) newNote(line int, format string, args ...any) Note {
	return Note{Line: line, Text: d.lineText(line), Nearest: oneLine(fmt.Sprintf(format, args...))}
}

// newService adds a service whose name is derived from the words.
func (d *draft) newService(line int, words ...string) *service {
	s := &service{name: d.freeName(strings.Join(words, "-")), line: line}
	d.services = append(d.services, s)
	return s
}

// freeName derives an unused DNS label from text.
func (d *draft) freeName(text string) string {
	const longest = 63 - len("-99999")
	label := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, text)
	label = strings.Trim(label[:min(len(label), longest)], "-")
	label = cmp.Or(label, "service")
	name := label
	for d.names[name] > 0 {
		d.names[label]++
		name = label + "-" + strconv.Itoa(d.names[label])
	}
	d.names[name] = 1
	return name
}

// endpointAt adds an endpoint with an address or DNS name and a port, and returns its fields. If
// portText is empty or 0, the endpoint has the service's port. If host or portText is invalid, it
// adds a note and returns nil.
func (d *draft) endpointAt(s *service, line int, host, portText string) map[string]any {
	var port uint16
	if portText != "" && portText != "0" {
		var err error
		if port, err = parsePort(portText); err != nil {
			d.note(line, "left out: %v", err)
			return nil
		}
	}
	if name := strings.ToLower(host); name != "localhost" && balancer.IsHostName(name) {
		host = name
	} else if addr, ok := d.host(line, host); ok {
		host = addr.String()
	} else {
		return nil
	}
	return s.endpoint(line, host, port)
}

// amount sets an endpoint's weight or max_connections, unless the number is the default. word is
// the setting's name in the origin.
func (d *draft) amount(fields map[string]any, line int, word, field, text string) {
	usual := map[string]int64{"weight": 1}[field]
	switch n := number(text); n {
	case -1:
		d.note(line, "left out: %s needs a number from 0", word)
	case usual:
		delete(fields, field)
	default:
		fields[field] = n
	}
}

// scheduling is the scheduler that is closest to the origin's scheduler. note describes the
// difference, or is "".
type scheduling struct{ scheduler, note string }

func (d *draft) schedule(s *service, line int, as scheduling) {
	s.set(line, "scheduler", as.scheduler)
	if as.note != "" {
		d.note(line, "%s", as.note)
	}
}

// setTime sets a field to the duration in text. If the text is not a duration, it only adds a note.
func (d *draft) setTime(s *service, line int, field, text string, unit time.Duration) {
	if t, ok := d.span(line, text, unit); ok {
		s.set(line, field, seconds(t.time))
	}
}

func seconds(d time.Duration) string { return decode.FormatDuration(d) }
