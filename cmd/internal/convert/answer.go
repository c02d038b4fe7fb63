package convert

import (
	"slices"
	"strings"
)

// answer is the note about words of a format without an exact equivalent.
type answer struct {
	// in is the place of the words; "" means statements.
	in string
	// words has the words, separated by spaces; "*" means all words of the place without another
	// answer.
	words string
	// said is the note; "" means that nothing is lost.
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
	ownResolver  = "vipd follows names by itself; [resolver] in vipd.toml sets other servers than /etc/resolv.conf has"
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

// answer adds the note about a word, if anything is lost.
func (d *draft) answer(line int, in, word string) {
	if said := d.said(in, word); said != "" {
		d.note(line, "%s", said)
	}
}
