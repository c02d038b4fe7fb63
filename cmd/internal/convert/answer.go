package convert

import (
	"slices"
	"strings"
)

// answer is a note about words of a format that have no exact equivalent in vipd.
type answer struct {
	// in is the kind of line in which the words occur. "" means the first word of a statement.
	in string
	// words lists the words, separated by spaces. "*" means all words of this kind of line that
	// have no other answer.
	words string
	// note is the text of the note, or "" if nothing is lost.
	note string
}

// These notes are shared by several formats.
const (
	noEquivalent = "vipd has no equivalent"
	noHTTP       = "vipd does not read HTTP"
	noTLSEnd     = "vipd does not end TLS: connections go on encrypted, and the endpoints need the certificate"
	noPROXY      = "clients send a PROXY header here: set accept_proxy_protocol = true, and trusted to the networks of these clients"
	noRules      = "vipd does not choose by rules; give each choice a separate service, with its VIP or port"
	noDatagrams  = "flows of UDP end after idle_timeout; vipd does not count datagrams"
	noMarks      = "vipd does not serve packet marks; write a service with the addresses and ports that the rules of this mark match"
	noPorts      = "services have ports; write one that lists the ports in use"
	nearLog      = "nearest is access_log of the service or of [userspace], in logfmt or as JSON"
	nearBound    = "nearest is max_connections in the endpoints"
	ownResolver  = "vipd follows names by itself; [resolver] in vipd.toml sets other servers than /etc/resolv.conf has"
	ownAddress   = "connections leave with this host's address"
)

// noteOf returns the note about a word.
func (d *draft) noteOf(in, word string) string {
	for _, word := range []string{word, "*"} {
		for _, a := range d.answers {
			if a.in == in && slices.Contains(strings.Fields(a.words), word) {
				return a.note
			}
		}
	}
	return noEquivalent
}

// answer adds the note about a word, unless the note is empty.
func (d *draft) answer(line int, in, word string) {
	if note := d.noteOf(in, word); note != "" {
		d.note(line, "%s", note)
	}
}
