package convert

import (
	"slices"
	"strings"
)

// ruleset holds the rules of one kind in one section. The first rule that matches a client decides.
type ruleset struct {
	name    string
	backend bool
	rules   []accessRule
}

// haproxyRules holds the client rules of a frontend and its backend.
type haproxyRules struct {
	sets []ruleset
	// inBackend reports whether the current statements belong to the backend.
	inBackend bool
	// acls maps each acl's name to its definitions. aclSets caches the clients that match the acls
	// in rules. Each section has its own acls.
	acls    map[string][][]string
	aclSets map[string]aclSet
}

func newHAProxyRules() haproxyRules {
	return haproxyRules{acls: map[string][][]string{}, aclSets: map[string]aclSet{}}
}

// enterBackend discards the frontend's acls.
func (h *haproxyRules) enterBackend() {
	h.inBackend = true
	clear(h.acls)
	clear(h.aclSets)
}

// add adds a rule to the ruleset of its kind. words is the rule's condition. known reports whether
// the condition depends only on the client's address.
func (h *haproxyRules) add(kind string, line int, accept bool, words []string) (known bool) {
	clients, known := h.condition(words)
	i := slices.IndexFunc(h.sets, func(s ruleset) bool { return s.name == kind && s.backend == h.inBackend })
	if i < 0 {
		i, h.sets = len(h.sets), append(h.sets, ruleset{name: kind, backend: h.inBackend})
	}
	h.sets[i].rules = append(h.sets[i].rules, accessRule{line: line, accept: accept, clients: clients, unknown: !known})
	return known
}

// tcpRequest converts a tcp-request rule.
func (p *proxy) tcpRequest(s *statement) {
	kind, action := s.word(1), s.word(2)
	switch {
	case kind == "inspect-delay":
		return // vipd does not read requests, so it does not wait
	case action == "accept", action == "reject", action == "silent-drop":
		p.rules.add(kind, s.line, action == "accept", s.rest(3))
	case strings.HasPrefix(action, "expect-"):
		p.disable(p.service, s.line, noPROXY)
	case action == "use-service", action == "switch-mode", strings.HasPrefix(action, "lua."):
		p.disable(p.service, s.line, "HAProxy handles some connections itself here, but vipd would forward them to the endpoints")
	default:
		p.note(s.line, "%s", noEquivalent)
	}
}

// httpRequest converts an http-request rule.
func (p *proxy) httpRequest(s *statement) {
	action := s.word(1)
	switch {
	case slices.Contains([]string{"allow", "deny", "reject", "silent-drop", "tarpit"}, action):
		if p.rules.add("http-request", s.line, action == "allow", s.rest(2)) {
			p.note(s.line, "refused clients get no HTTP answer")
		}
	case slices.Contains([]string{"auth", "redirect", "return", "use-service", "del-header"}, action), strings.HasPrefix(action, "lua."):
		p.disable(p.service, s.line, "HAProxy answers or changes some requests here, but vipd would forward them to the endpoints unchanged")
	default:
		p.note(s.line, noHTTP)
	}
}

// condition returns the clients that match the condition in words, which starts with "if" or
// "unless". It returns false if the condition depends on more than the client's address.
func (h *haproxyRules) condition(words []string) (netset, bool) {
	at := slices.IndexFunc(words, func(w string) bool { return w == "if" || w == "unless" })
	if at < 0 {
		return everyone(), true
	}
	clients, known := h.anyOf(words[at+1:])
	if known && words[at] == "unless" {
		clients = clients.complement()
	}
	return clients, known
}

// anyOf returns the clients that match a list of terms with "or" between them.
func (h *haproxyRules) anyOf(words []string) (netset, bool) {
	any := netset(nil)
	all := everyone()
	negated := false
	for i := 0; i < len(words); i++ {
		word := words[i]
		if word == "or" || word == "||" {
			any, all = any.union(all), everyone()
			continue
		}
		for strings.HasPrefix(word, "!") {
			negated, word = !negated, word[1:]
		}
		if word == "" {
			continue
		}
		clients, known := h.acl(word)
		if word == "{" {
			end := slices.Index(words[i:], "}")
			if end < 0 {
				return nil, false
			}
			clients, known = aclClients(words[i+1 : i+end])
			i += end
		}
		if !known {
			return nil, false
		}
		if negated {
			clients, negated = clients.complement(), false
		}
		all = all.intersection(clients)
	}
	return any.union(all), true
}

// acl returns the clients that match a named acl. If a name has several definitions, the result is
// the union of their clients.
func (h *haproxyRules) acl(name string) (netset, bool) {
	switch name {
	case "TRUE":
		return everyone(), true
	case "FALSE":
		return nil, true
	case "LOCALHOST":
		return parseNetworks([]string{"127.0.0.0/8", "::1"})
	}
	if set, cached := h.aclSets[name]; cached {
		return set.clients, set.known
	}
	definitions := h.acls[name]
	set := aclSet{known: len(definitions) > 0}
	var values []string
	for _, words := range definitions {
		more, isSource := sourceValues(words)
		set.known = set.known && isSource
		values = append(values, more...)
	}
	if set.known {
		set.clients, set.known = parseNetworks(values)
	}
	h.aclSets[name] = set
	return set.clients, set.known
}

// aclSet holds the clients that match an acl. known reports whether the acl depends only on the
// client's address.
type aclSet struct {
	clients netset
	known   bool
}

// aclClients returns the clients that match an anonymous acl, or one definition of a named acl. It
// returns false if the acl depends on more than the client's address.
func aclClients(words []string) (netset, bool) {
	if len(words) == 1 && (words[0] == "always_true" || words[0] == "always_false") {
		if words[0] == "always_true" {
			return everyone(), true
		}
		return nil, true
	}
	values, isSource := sourceValues(words)
	if !isSource {
		return nil, false
	}
	return parseNetworks(values)
}

// sourceValues returns the values of an acl that tests the client's address. It returns false for
// other acls, and for values in files.
func sourceValues(words []string) ([]string, bool) {
	if len(words) < 2 || words[0] != "src" {
		return nil, false
	}
	values := words[1:]
	for len(values) > 0 && (values[0] == "-n" || values[0] == "-i" || values[0] == "--") {
		values = values[1:]
	}
	return values, len(values) > 0 && !strings.HasPrefix(values[0], "-")
}
