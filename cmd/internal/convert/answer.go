package convert

import (
	"slices"
	"strings"
)

// answer is a note about configuration words that have no exact equivalent in vipd.
type answer struct {
	// in is the kind of line on which the words occur. "" means the first word of a statement.
	in string
	// words lists the words, separated by spaces. "*" means every word on this kind of line that
	// has no answer of its own.
	words string
	// note is the text of the note, or "" if the word can be ignored.
	note string
}

// These notes are shared by several formats.
const (
	noEquivalent = "vipd has no equivalent"
	noHTTP       = "vipd does not read HTTP"
	noTLSEnd     = "vipd does not terminate TLS: connections stay encrypted, and the endpoints need the certificate"
	noPROXY      = "clients send a PROXY header here: set accept_proxy_protocol = true, and trusted to these clients' networks"
	noRules      = "vipd does not choose endpoints by rules; write a service for each choice, with its own VIP or port"
	noDatagrams  = "UDP flows end after idle_timeout; vipd does not count datagrams"
	noMarks      = "vipd does not serve packet marks; write a service with the addresses and ports that the rules for this mark match"
	noPorts      = "a service needs ports; write a service that lists the ports in use"
	nearLog      = "the nearest setting is access_log in the service or in [userspace], in logfmt or as JSON"
	nearBound    = "the nearest setting is max_connections in the endpoints"
	ownResolver  = "vipd resolves names itself; to use DNS servers that are not in /etc/resolv.conf, set [resolver] in vipd.toml"
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
