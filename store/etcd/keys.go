package etcd

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"vipd/balancer"
)

// Keys are the names under one prefix.
type Keys struct{ prefix string }

// NewKeys returns the names under prefix, such as /vipd.
func NewKeys(prefix string) (Keys, error) {
	prefix = strings.TrimRight(prefix, "/")
	if prefix == "" || !printable(prefix) {
		return Keys{}, fmt.Errorf(`the prefix %q is not possible: write a path such as "/vipd"`, prefix)
	}
	return Keys{prefix}, nil
}

// The folders that a Source follows.
const (
	serviceFolder  = "/services/"
	endpointFolder = "/endpoints/"
	overrideFolder = "/overrides/"
	historyFolder  = "/history/"
)

// folders are the key prefixes that a Source follows.
func (k Keys) folders() [3]string {
	return [3]string{k.prefix + serviceFolder, k.prefix + endpointFolder, k.prefix + overrideFolder}
}

// Service returns the key of a service.
func (k Keys) Service(name balancer.Name) string { return k.prefix + serviceFolder + string(name) }

// Endpoint returns the key of an endpoint that is published apart from its service.
func (k Keys) Endpoint(id balancer.EndpointID) string {
	return k.prefix + endpointFolder + string(id.Service) + "/" + id.ID
}

// Override returns the key of what is said by hand of a target.
func (k Keys) Override(t balancer.Target) string {
	return k.prefix + overrideFolder + string(t.Service) + "/" + t.Address()
}

// endpointsOf and overridesOf are the folders of one service, historyOf too.
func (k Keys) endpointsOf(name balancer.Name) string {
	return k.prefix + endpointFolder + string(name) + "/"
}
func (k Keys) overridesOf(name balancer.Name) string {
	return k.prefix + overrideFolder + string(name) + "/"
}
func (k Keys) historyOf(name balancer.Name) string {
	return k.prefix + historyFolder + string(name) + "/"
}

// history returns the key of a text in the history of a service.
func (k Keys) history(name balancer.Name, n int) string { return k.historyOf(name) + strconv.Itoa(n) }

// kind is what a key is about.
type kind int

const (
	unknownKind kind = iota
	serviceKind
	endpointKind
	overrideKind
)

// subject is what a key names.
type subject struct {
	kind kind
	// of is the service; "" where the key names none.
	of     balancer.Name
	id     balancer.EndpointID
	target balancer.Target
}

// longestID is how long the ID of an endpoint may be, in bytes.
const longestID = 253

// parse reads a key. With an error, the subject has the service as far as that can be told.
func (k Keys) parse(key string) (subject, error) {
	rest, _ := strings.CutPrefix(key, k.prefix)
	folder, rest, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	name, id, deeper := strings.Cut(rest, "/")
	s := subject{of: balancer.Name(name)}
	if !s.of.Valid() {
		s.of = ""
		return s, fmt.Errorf("%s names no service: names are DNS labels of a-z, 0-9 and -", quote(key))
	}
	switch "/" + folder + "/" {
	case serviceFolder:
		if deeper {
			return s, fmt.Errorf("%s is not the key of a service: nothing is below %s", quote(key), k.Service(s.of))
		}
		s.kind = serviceKind
	case endpointFolder:
		if err := CheckID(id); err != nil {
			return s, err
		}
		s.kind, s.id = endpointKind, balancer.EndpointID{Service: s.of, ID: id}
	case overrideFolder:
		t, err := balancer.ParseTarget(s.of, id)
		if err != nil {
			return s, err
		}
		if t.Address() != id {
			return s, fmt.Errorf("the address %q must be written as %q here: only one key may be about an endpoint", id, t.Address())
		}
		s.kind, s.target = overrideKind, t
	}
	return s, nil
}

// CheckID says what is wrong with the ID of an endpoint; nil: nothing.
func CheckID(id string) error {
	switch {
	case id == "":
		return errors.New("an endpoint needs an ID: endpoints/SERVICE/ID")
	case len(id) > longestID:
		return fmt.Errorf("the ID of an endpoint has at most %d bytes; this one has %d", longestID, len(id))
	case strings.Contains(id, "/") || !printable(id):
		return fmt.Errorf("the ID %s of an endpoint is not possible: it has no /, no spaces and only characters that print", quote(id))
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// quote writes text that anybody may have written, in bounds.
func quote(text string) string {
	const most = 120
	if len(text) > most {
		return strconv.Quote(text[:most]) + "..."
	}
	return strconv.Quote(text)
}
