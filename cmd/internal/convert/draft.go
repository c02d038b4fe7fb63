package convert

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// draft is a configuration while it is converted.
type draft struct {
	// ctx ends the conversion.
	ctx          context.Context
	format, file string
	// lines has the lines of the origin; line n is lines[n-1].
	lines []string
	// answers are about the words of the format without an equivalent.
	answers []answer
	// wildcard are the VIPs of listeners without an address.
	wildcard []netip.Addr
	// mode is the mode closest to the origin, with the reason; "" means auto.
	mode, modeWhy string
	// unbound is the line by which another program owns the addresses; 0 means that there is none.
	unbound  int
	services []*service
	// groups are the groups of VRRP, and announce is the interval of announcements of their VIPs.
	groups   []*vrrpGroup
	announce *setting
	// empty is the reason why there are no services.
	empty string
	notes []Note
	// index finds notes, names and lines without a search.
	index index
	// work counts the statements that were read, repeatedly if several services use them.
	work int
}

// index speeds up the repeated lookups of a draft.
type index struct {
	noted map[Note]bool
	// disabled are the reasons of services.
	disabled map[reason]bool
	// names has the names of services, with the last number that was appended to each; 1 means none
	// was.
	names map[string]int
	// texts are the results of lineText.
	texts map[int]string
}

func newDraft(ctx context.Context, format, file, text string, o Options) *draft {
	return &draft{
		ctx: ctx, format: format, file: file, wildcard: o.VIPs,
		lines: strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n"),
		index: index{noted: map[Note]bool{}, disabled: map[reason]bool{}, names: map[string]int{}, texts: map[int]string{}},
	}
}

// maxWork is the maximum number of statements that are read. A text of 2 MB has about 100,000; a
// shared list in many services multiplies them.
const maxWork = 1_000_000

// endpointWork is the weight of an endpoint in statements, because decoding and writing it is
// slower. vipd reads at most 500,000 keys and elements from a file, so 200,000 endpoints are too
// many in any case.
const endpointWork = 4

// spend counts statements before they are read. It returns an error if the conversion was
// interrupted or reads too many.
func (d *draft) spend(line, statements int) error {
	d.work += statements
	if d.work > maxWork {
		return d.errorf(line, "shared lists, defaults or variables repeat more than %d statements: convert the file in parts", maxWork)
	}
	return d.ctx.Err()
}

// lineText returns the text of line n, without characters that a TOML comment can't have.
func (d *draft) lineText(n int) string {
	if n < 1 || n > len(d.lines) {
		return ""
	}
	text, known := d.index.texts[n]
	if !known {
		text = plain(d.lines[n-1])
		d.index.texts[n] = text
	}
	return text
}

// oneLine makes text fit into a comment.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
}

// plain makes text of the origin fit into a comment, and shortens it.
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
// line that several services inherit is noted once.
func (d *draft) note(line int, format string, args ...any) {
	n := d.newNote(line, format, args...)
	if !d.index.noted[n] {
		d.index.noted[n] = true
		d.notes = append(d.notes, n)
	}
}

func (d *draft) newNote(line int, format string, args ...any) Note {
	return Note{Line: line, Text: d.lineText(line), Nearest: oneLine(fmt.Sprintf(format, args...))}
}

// newService adds a service. Its name consists of the words.
func (d *draft) newService(line int, words ...string) *service {
	s := &service{name: d.freeName(strings.Join(words, "-")), line: line}
	d.services = append(d.services, s)
	return s
}

// freeName makes a DNS label of text that no other service has.
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
	for d.index.names[name] > 0 {
		d.index.names[label]++
		name = label + "-" + strconv.Itoa(d.index.names[label])
	}
	d.index.names[name] = 1
	return name
}

// endpointAt adds the endpoint at an address or DNS name and a port. No port, or 0, means the
// service's. It notes a mistake and returns nil.
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
	if d.spend(line, endpointWork) != nil {
		return nil // fitAll returns the error of spend
	}
	return s.endpoint(line, host, port)
}

// amount sets the weight or max_connections of an endpoint, unless it is the default. The word
// names it in the origin.
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

// scheduling is the scheduler nearest to a scheduler of the origin, with a note about the
// difference, if any.
type scheduling struct{ scheduler, note string }

func (d *draft) schedule(s *service, line int, as scheduling) {
	s.set(line, "scheduler", as.scheduler)
	if as.note != "" {
		d.note(line, "%s", as.note)
	}
}

// setTime sets a field to the time in the line. It notes a text that is not a time.
func (d *draft) setTime(s *service, line int, field, text string, unit time.Duration) {
	if t, ok := d.span(line, text, unit); ok {
		s.set(line, field, seconds(t.time))
	}
}

// seconds writes a time as vipd reads it.
func seconds(d time.Duration) string { return decode.FormatDuration(d) }
