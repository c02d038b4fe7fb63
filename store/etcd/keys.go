package etcd

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/failover"
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

// The folders below the prefix.
const (
	serviceFolder   = "/services/"
	endpointFolder  = "/endpoints/"
	overrideFolder  = "/overrides/"
	vipFolder       = "/vips/"
	poolFolder      = "/pools/"
	nodeFolder      = "/nodes/"
	historyFolder   = "/history/"
	healthFolder    = "/health/"
	hostFolder      = "/hosts/"
	claimFolder     = "/claims/"
	ownershipFolder = "/ownership/"
	policyFolder    = ownershipFolder + "policy/"
)

// The keys of a node, in its folder.
const (
	nodeConfig = "config"
	nodeLive   = "live"
	nodeStatus = "status"
)

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

// VIP returns the key of an allocated address.
func (k Keys) VIP(a netip.Addr) string { return k.prefix + vipFolder + a.String() }

// Policy returns the key of the settings of an address.
func (k Keys) Policy(a netip.Addr) string { return k.prefix + policyFolder + a.String() }

// Pool returns the key of a pool of addresses.
func (k Keys) Pool(name string) string { return k.prefix + poolFolder + name }

// NodeConfig returns the key of what a node is told.
func (k Keys) NodeConfig(node string) string { return k.nodeKey(node, nodeConfig) }

// NodeLive returns the key that is there while the node is.
func (k Keys) NodeLive(node string) string { return k.nodeKey(node, nodeLive) }

// NodeStatus returns the key in which a node says how it is.
func (k Keys) NodeStatus(node string) string { return k.nodeKey(node, nodeStatus) }

// Host returns the key in which a node publishes its addresses.
func (k Keys) Host(node string) string { return k.prefix + hostFolder + node }

func (k Keys) nodeKey(node, key string) string { return k.prefix + nodeFolder + node + "/" + key }

// HealthLive returns the key that is there while the node takes part in the fleet's health checks.
func (k Keys) HealthLive(node string) string { return k.healthOf(node) + nodeLive }

// healthOf is the folder of all that a node says of health checks.
func (k Keys) healthOf(node string) string { return k.prefix + healthFolder + node + "/" }

// Health returns the key of what a node has found of a target.
func (k Keys) Health(node string, t balancer.Target) string {
	return k.healthOf(node) + string(t.Service) + "/" + t.Address()
}

// Ownership returns the key of a record of who owns which VIP.
func (k Keys) Ownership(of failover.Key) string {
	return k.prefix + ownershipFolder + string(of.Kind) + "/" + of.Name
}

// secrets returns the key of the keys of heartbeats.
func (k Keys) secrets() string { return k.prefix + ownershipFolder + "key" }

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
	vipKind
	nodeConfigKind
	policyKind
	poolKind
	hostKind
)

// subject is what a key names.
type subject struct {
	kind kind
	// of is the service; "" where the key names none.
	of     balancer.Name
	id     balancer.EndpointID
	target balancer.Target
	vip    netip.Addr
	node   string
	ofPool balancer.Name
}

// longestID is how long the ID of an endpoint or the name of a node may be, in bytes.
const longestID = 253

// parse reads a key of those that a Source follows. With an error, the subject has the service as far as that can be
// told.
func (k Keys) parse(key string) (subject, error) {
	rest, _ := strings.CutPrefix(key, k.prefix)
	folder, rest, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	switch "/" + folder + "/" {
	case vipFolder:
		return parseVIP(rest)
	case ownershipFolder:
		s, err := parseVIP(strings.TrimPrefix(rest, "policy/"))
		s.kind = policyKind
		return s, err
	case poolFolder:
		s := subject{kind: poolKind, ofPool: balancer.Name(rest)}
		if !s.ofPool.Valid() {
			return subject{}, fmt.Errorf("%s names no pool: names are DNS labels of a-z, 0-9 and -", quote(key))
		}
		return s, nil
	case nodeFolder:
		return parseNode(key, rest)
	case hostFolder:
		return subject{kind: hostKind, node: rest}, CheckNode(rest)
	}
	return k.parseOfService(key, folder, rest)
}

// parseOfService reads a key that names a service behind its folder.
func (k Keys) parseOfService(key, folder, rest string) (subject, error) {
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
		if err := checkID(id); err != nil {
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

func parseVIP(address string) (subject, error) {
	a, err := decode.ParseAddr(address)
	switch {
	case err != nil:
		return subject{}, err
	case a.String() != address:
		return subject{}, fmt.Errorf("the address %s must be written as %q here: only one key may be about an address", quote(address), a)
	}
	return subject{kind: vipKind, vip: a}, nil
}

func parseNode(key, rest string) (subject, error) {
	node, name, _ := strings.Cut(rest, "/")
	if err := CheckNode(node); err != nil {
		return subject{}, err
	}
	if name != nodeConfig {
		return subject{}, fmt.Errorf("%s is not the configuration of a node", quote(key))
	}
	return subject{kind: nodeConfigKind, node: node}, nil
}

// checkID says what is wrong with the ID of an endpoint; nil means nothing.
func checkID(id string) error {
	return checkPart(id, "an endpoint needs an ID: endpoints/SERVICE/ID", "ID", "an endpoint")
}

// CheckNode says what is wrong with the name of a node; nil means nothing.
func CheckNode(name string) error {
	return checkPart(name, "a node needs a name", "name", "a node")
}

// checkPart says what is wrong with a part of a key, which is what (ID, name) of something.
func checkPart(text, missing, what, of string) error {
	switch {
	case text == "":
		return errors.New(missing)
	case len(text) > longestID:
		return fmt.Errorf("the %s of %s has at most %d bytes; this one has %d", what, of, longestID, len(text))
	case strings.Contains(text, "/") || !printable(text):
		return fmt.Errorf("the %s %s of %s is not possible: it has no /, no spaces and only characters that print", what, quote(text), of)
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// quote writes foreign text, in bounds.
func quote(text string) string {
	const most = 120
	if len(text) > most {
		return strconv.Quote(text[:most]) + "..."
	}
	return strconv.Quote(text)
}
