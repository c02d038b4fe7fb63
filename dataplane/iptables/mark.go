package iptables

import (
	"fmt"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/dataplane"
)

// mark is what the last rule of a frontend's chain tells in its comment: of whom the chain is, the digest of what it was
// made of, and how many rules it and the chains below it have. It finds drift without reading rules.
type mark struct {
	key     balancer.Key
	service balancer.Name
	port    string
	digest  dataplane.Digest
	rules   int
}

// rule is the rule that carries the mark.
func (m mark) rule() string {
	name := string(m.service)
	if m.port != "" {
		name += "/" + m.port
	}
	return fmt.Sprintf(`-m comment --comment "vipd %s %s %016x %d" -j RETURN`, m.key, name, uint64(m.digest), m.rules)
}

// readMark reads what rule wrote.
func readMark(rule string) (mark, bool) {
	text, ok := strings.CutPrefix(rule, `-m comment --comment "vipd `)
	text, end := strings.CutSuffix(text, `" -j RETURN`)
	words := strings.Fields(text)
	if !ok || !end || len(words) != 4 {
		return mark{}, false
	}
	key, keyErr := balancer.ParseKey(words[0])
	digest, digestErr := strconv.ParseUint(words[2], 16, 64)
	rules, rulesErr := strconv.Atoi(words[3])
	if keyErr != nil || digestErr != nil || rulesErr != nil {
		return mark{}, false
	}
	service, port, _ := strings.Cut(words[1], "/")
	return mark{key, balancer.Name(service), port, dataplane.Digest(digest), rules}, true
}
