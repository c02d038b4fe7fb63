package convert

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
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
	// lines are the lines of the origin; line n is lines[n-1].
	lines []string
	// answers are about the words of the format that have no equivalent.
	answers []answer
	// wildcard are the VIPs of listeners without an address.
	wildcard []netip.Addr
	// mode is the mode that is most like the origin, and why; "" means auto.
	mode, modeWhy string
	// unbound: another program owns the addresses. It is the line that says so; 0 means none does.
	unbound  int
	services []*service
	// empty says why there are no services.
	empty string
	notes []Note
	// index finds notes, names and lines without a search.
	index index
	// work counts the statements that were read, repeatedly if several services use them.
	work int
}

// index keeps what a draft looks up again and again.
type index struct {
	noted map[Note]bool
	// disabled are the reasons of services.
	disabled map[reason]bool
	// names are the names of services, with the last number that was appended to each; 1 means none was.
	names map[string]int
	// texts are the results of lineText.
	texts map[int]string
}

// service is a service of a draft: each part with the line that it comes from.
type service struct {
	name                   string
	line                   int
	vips, ports, endpoints []entry
	settings               []setting
	// health are the fields of the health table.
	health []setting
	// clients are the addresses that may connect; nil means all.
	clients netset
	// reasons say why the service is commented out; none means that it is not.
	reasons []Note
}

// entry is an element of a list.
type entry struct {
	value any
	line  int
	// port is that of an endpoint; 0 means the service's.
	port uint16
}

func (e *entry) fields() map[string]any { return e.value.(map[string]any) }

// setting is a field.
type setting struct {
	name  string
	value any
	// line is where the origin says so; 0 means it does not, and why says where the value comes from.
	line int
	why  string
}

func newDraft(ctx context.Context, format, file, text string, o Options) *draft {
	return &draft{
		ctx: ctx, format: format, file: file, wildcard: o.VIPs,
		lines: strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n"),
		index: index{noted: map[Note]bool{}, disabled: map[reason]bool{}, names: map[string]int{}, texts: map[int]string{}},
	}
}

// maxWork is the maximum number of statements that are read. A text of 2 MB has about 100,000; a shared list in many services
// multiplies them.
const maxWork = 1_000_000

// endpointWork counts an endpoint as several statements: decoding and writing it takes longer. vipd reads at most 500,000 keys and
// elements from a file, so 200,000 endpoints are too many in any case.
const endpointWork = 4

// spend counts statements before they are read. It returns an error if the conversion was interrupted or reads too many.
func (d *draft) spend(line, statements int) error {
	d.work += statements
	if d.work > maxWork {
		return d.errorf(line, "shared lists, defaults or variables repeat more than %d statements: convert the file in parts", maxWork)
	}
	return d.ctx.Err()
}

// lineText is what line n says, without what a comment in TOML can't hold.
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

// oneLine makes text fit for a comment.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
}

// plain makes text of the origin fit for a comment, and shortens it.
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

// note records that a line has no exact equivalent. The text says what vipd does instead. A line that several services
// inherit is noted once.
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

// newService adds a service. Its name is made of the words.
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

// set gives a field its value, in place of an earlier one.
func (s *service) set(line int, name string, value any) {
	s.settings = put(s.settings, setting{name: name, value: value, line: line})
}

// check gives a field of the health table its value, in place of an earlier one.
func (s *service) check(line int, name string, value any) {
	s.health = put(s.health, setting{name: name, value: value, line: line})
}

func put(all []setting, one setting) []setting {
	all = slices.DeleteFunc(all, func(s setting) bool { return s.name == one.name })
	return append(all, one)
}

// originDefault is why a field has the value that the origin gives it where it says none.
const originDefault = "the default of the origin"

// defaulted gives a field the origin's default where it has no value.
func defaulted(all []setting, name string, value any) []setting {
	if find(all, name) != nil {
		return all
	}
	return append(all, setting{name: name, value: value, why: originDefault})
}

// find returns the setting of a name; nil means there is none.
func find(all []setting, name string) *setting {
	if at := slices.IndexFunc(all, func(s setting) bool { return s.name == name }); at >= 0 {
		return &all[at]
	}
	return nil
}

// endpoint adds an endpoint, without the fields that have their default.
func (s *service) endpoint(line int, address netip.Addr, port uint16) map[string]any {
	fields := map[string]any{"address": address.String()}
	s.endpoints = append(s.endpoints, entry{value: fields, port: port, line: line})
	return fields
}

// endpointAt adds the endpoint at an address and port that the line says; no port, or 0, is the service's. Where they are none, it notes
// that and returns nil.
func (d *draft) endpointAt(s *service, line int, host, portText string) map[string]any {
	var port uint16
	if portText != "" && portText != "0" {
		var err error
		if port, err = parsePort(portText); err != nil {
			d.note(line, "left out: %v", err)
			return nil
		}
	}
	addr, ok := d.host(line, host)
	if !ok || d.spend(line, endpointWork) != nil {
		return nil // fitAll returns the error of spend
	}
	return s.endpoint(line, addr, port)
}

// amount gives an endpoint its weight or max_connections, unless that is the default; the word says so in the origin.
func (d *draft) amount(fields map[string]any, line int, word, field, text string) {
	usual := map[string]int64{"weight": 1}[field]
	switch n := number(text); n {
	case -1:
		d.note(line, "%s needs a number", word)
	case usual:
		delete(fields, field)
	default:
		fields[field] = n
	}
}

// scheduling is the scheduler that is like one of the origin, and what is said of it where it is not the same.
type scheduling struct{ scheduler, note string }

func (d *draft) schedule(s *service, line int, as scheduling) {
	s.set(line, "scheduler", as.scheduler)
	if as.note != "" {
		d.note(line, "%s", as.note)
	}
}

// setTime gives a field the time that the line says; where it is none, it notes that.
func (d *draft) setTime(s *service, line int, field, text string, unit time.Duration) {
	if t, ok := d.span(line, text, unit); ok {
		s.set(line, field, seconds(t.time))
	}
}

// listener is an address and port on which the origin listens.
type listener struct {
	addr  netip.Addr
	port  uint16
	proto balancer.Protocol
	line  int
}

// spread makes services for listeners: one for each set of addresses that have the same ports.
func (d *draft) spread(line int, name string, listeners []listener) []*service {
	type port struct {
		number uint16
		proto  balancer.Protocol
	}
	var ports []port
	vips := map[port][]listener{}
	seen := map[listener]bool{}
	for _, l := range listeners {
		p := port{l.port, l.proto}
		if vips[p] == nil {
			ports = append(ports, p)
		}
		if where := (listener{addr: l.addr, port: l.port, proto: l.proto}); !seen[where] {
			seen[where] = true
			vips[p] = append(vips[p], l)
		}
	}
	sets := map[string]*service{}
	var out []*service
	for _, p := range ports {
		var addresses strings.Builder
		for _, l := range vips[p] {
			addresses.WriteString(l.addr.String() + " ")
		}
		key := addresses.String()
		s := sets[key]
		if s == nil {
			s = d.newService(line, name)
			for _, l := range vips[p] {
				s.vips = append(s.vips, entry{value: l.addr.String(), line: l.line})
			}
			sets[key], out = s, append(out, s)
		}
		fields := map[string]any{"port": int64(p.number)}
		if p.proto != balancer.TCP {
			fields["protocol"] = string(p.proto)
		}
		s.ports = append(s.ports, entry{value: fields, line: vips[p][0].line})
	}
	return out
}

// seconds writes a time as vipd reads it.
func seconds(d time.Duration) string { return decode.FormatDuration(d) }

// answer is what is said of words of a format that vipd has no exact equivalent for.
type answer struct {
	// in is where the words stand: "" for statements by themselves.
	in string
	// words are the words, with spaces between them; "*" are all that no other answer of the place is about.
	words string
	// said is the note; "" where nothing is lost.
	said string
}

// Answers that several formats have.
const (
	noEquivalent = "vipd has no equivalent"
	noHTTP       = "vipd does not read HTTP"
	noTLSEnd     = "vipd does not end TLS: connections go on encrypted, and the endpoints need the certificate"
	noPROXY      = "clients send a PROXY header here, and vipd passes it on: the endpoints get one that they may not expect, or two with proxy_protocol"
	noRules      = "vipd does not choose by rules; give each choice a separate service, with its VIP or port"
	noDatagrams  = "flows of UDP end after idle_timeout; vipd does not count datagrams"
	noMarks      = "vipd does not serve packet marks; write a service with the addresses and ports that the rules of this mark match"
	noPorts      = "services have ports; write one that lists the ports in use"
	nearLog      = "nearest is access_log of the service or of [userspace], in logfmt or as JSON"
	nearBound    = "nearest is max_connections in the endpoints"
	selfRegister = "endpoints have addresses; servers that come and go join with \"vipctl register\""
	ownAddress   = "connections leave with this host's address"
)

// said returns the answer about a word.
func (d *draft) said(in, word string) string {
	for _, word := range []string{word, "*"} {
		for _, a := range d.answers {
			if a.in == in && slices.Contains(strings.Fields(a.words), word) {
				return a.said
			}
		}
	}
	return noEquivalent
}

// answer notes what is said of a word, if anything is lost.
func (d *draft) answer(line int, in, word string) {
	if said := d.said(in, word); said != "" {
		d.note(line, "%s", said)
	}
}
