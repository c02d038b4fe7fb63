package convert

import (
	"slices"
	"strings"
)

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
	noPROXY      = "vipd does not read PROXY headers of clients; they go on to the endpoints as they are"
	noRules      = "vipd does not choose by rules; give each choice a separate service, with its VIP or port"
	noDatagrams  = "flows of UDP end after idle_timeout; vipd does not count datagrams"
	noMarks      = "left out: vipd does not serve packet marks; write a service with the addresses and ports that the rules of this mark match"
	noPorts      = "left out: services have ports; write one that lists the ports in use"
	nearLog      = "nearest is access_log of the service or of [userspace], in logfmt or as JSON"
	nearBound    = "nearest is max_connections in the endpoints"
	nearRanges   = "nearest is source_ranges, the networks that may connect"
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
