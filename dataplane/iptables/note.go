package iptables

import (
	"fmt"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/dataplane"
)

// note is the comment in the last rule of a frontend's chain: the frontend, its digest, and the
// number of rules in this chain and in the chains below it. If the digest or the number differs,
// the chains must be written again.
type note struct {
	key     balancer.Key
	service balancer.Name
	port    string
	digest  dataplane.Digest
	rules   int
}

func (n note) rule() string {
	name := string(n.service)
	if n.port != "" {
		name += "/" + n.port
	}
	return fmt.Sprintf(`-m comment --comment "vipd %s %s %016x %d" -j ACCEPT`, n.key, name, uint64(n.digest), n.rules)
}

// readNote parses the result of note.rule. It returns false if the rule is not a note.
func readNote(rule string) (note, bool) {
	text, ok := strings.CutPrefix(rule, `-m comment --comment "vipd `)
	text, end := strings.CutSuffix(text, `" -j ACCEPT`)
	words := strings.Fields(text)
	if !ok || !end || len(words) != 4 {
		return note{}, false
	}
	key, keyErr := balancer.ParseKey(words[0])
	digest, digestErr := strconv.ParseUint(words[2], 16, 64)
	rules, rulesErr := strconv.Atoi(words[3])
	if keyErr != nil || digestErr != nil || rulesErr != nil {
		return note{}, false
	}
	service, port, _ := strings.Cut(words[1], "/")
	return note{key, balancer.Name(service), port, dataplane.Digest(digest), rules}, true
}
