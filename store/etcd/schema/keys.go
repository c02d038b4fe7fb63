package schema

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

// Keys provides the names of keys under a prefix.
type Keys struct{ Prefix string }

// NewKeys returns the names of keys under prefix, such as /vipd.
func NewKeys(prefix string) (Keys, error) {
	prefix = strings.TrimRight(prefix, "/")
	if prefix == "" || !printable(prefix) {
		return Keys{}, fmt.Errorf(`the prefix %q is not valid: use a path such as "/vipd"`, prefix)
	}
	return Keys{prefix}, nil
}

// These are the folders under the prefix.
const (
	ServiceFolder   = "/services/"
	EndpointFolder  = "/endpoints/"
	OverrideFolder  = "/overrides/"
	VIPFolder       = "/vips/"
	PoolFolder      = "/pools/"
	NodeFolder      = "/nodes/"
	HistoryFolder   = "/history/"
	HealthFolder    = "/health/"
	HostFolder      = "/hosts/"
	ClaimFolder     = "/claims/"
	OwnershipFolder = "/ownership/"
	PolicyFolder    = OwnershipFolder + "policy/"
)

// These are the keys of a node, in the node's folder.
const (
	ConfigName = "config"
	LiveName   = "live"
	StatusName = "status"
)

// Service returns the key of a service.
func (k Keys) Service(name balancer.Name) string { return k.Prefix + ServiceFolder + string(name) }

// Endpoint returns the key of an endpoint that is registered separately from its service.
func (k Keys) Endpoint(id balancer.EndpointID) string {
	return k.Prefix + EndpointFolder + string(id.Service) + "/" + id.ID
}

// Override returns the key of an operator's override of a target.
func (k Keys) Override(t balancer.Target) string {
	return k.Prefix + OverrideFolder + string(t.Service) + "/" + t.Address()
}

// VIP returns the key of an allocated address.
func (k Keys) VIP(a netip.Addr) string { return k.Prefix + VIPFolder + a.String() }

// Policy returns the key of an address's settings.
func (k Keys) Policy(a netip.Addr) string { return k.Prefix + PolicyFolder + a.String() }

// Pool returns the key of a pool of addresses.
func (k Keys) Pool(name string) string { return k.Prefix + PoolFolder + name }

// NodeConfig returns the key of a node's configuration.
func (k Keys) NodeConfig(node string) string { return k.nodeKey(node, ConfigName) }

// NodeLive returns the key that exists while the node is live.
func (k Keys) NodeLive(node string) string { return k.nodeKey(node, LiveName) }

// NodeStatus returns the key of a node's status.
func (k Keys) NodeStatus(node string) string { return k.nodeKey(node, StatusName) }

// Host returns the key in which a node publishes its addresses.
func (k Keys) Host(node string) string { return k.Prefix + HostFolder + node }

func (k Keys) nodeKey(node, key string) string { return k.Prefix + NodeFolder + node + "/" + key }

// HealthLive returns the key that exists while a node takes part in the fleet's health checks.
func (k Keys) HealthLive(node string) string { return k.HealthOf(node) + LiveName }

// HealthOf returns the folder of a node's health checks.
func (k Keys) HealthOf(node string) string { return k.Prefix + HealthFolder + node + "/" }

// Health returns the key of a node's vote about a target.
func (k Keys) Health(node string, t balancer.Target) string {
	return k.HealthOf(node) + string(t.Service) + "/" + t.Address()
}

// Ownership returns the key of a failover record.
func (k Keys) Ownership(key failover.Key) string {
	return k.Prefix + OwnershipFolder + string(key.Kind) + "/" + key.Name
}

// Pending returns the key of the pending change.
func (k Keys) Pending() string { return k.Prefix + "/pending" }

// Secrets returns the key of the heartbeat keys.
func (k Keys) Secrets() string { return k.Prefix + OwnershipFolder + "key" }

// EndpointsOf returns the folder of a service's endpoints.
func (k Keys) EndpointsOf(name balancer.Name) string {
	return k.Prefix + EndpointFolder + string(name) + "/"
}

// OverridesOf returns the folder of a service's overrides.
func (k Keys) OverridesOf(name balancer.Name) string {
	return k.Prefix + OverrideFolder + string(name) + "/"
}

// HistoryOf returns the folder of a service's history.
func (k Keys) HistoryOf(name balancer.Name) string {
	return k.Prefix + HistoryFolder + string(name) + "/"
}

// History returns the key of an entry in a service's history.
func (k Keys) History(name balancer.Name, n int) string { return k.HistoryOf(name) + strconv.Itoa(n) }

// kind is the kind of object that a key is about.
type kind int

const (
	unknownKind kind = iota
	ServiceKind
	EndpointKind
	OverrideKind
	VIPKind
	NodeConfigKind
	PolicyKind
	PoolKind
	HostKind
	PendingKind
)

// Subject is the object that a key is about.
type Subject struct {
	Kind kind
	// Of is the service, or "" if the key does not name a service.
	Of     balancer.Name
	ID     balancer.EndpointID
	Target balancer.Target
	VIP    netip.Addr
	Node   string
	OfPool balancer.Name
}

// maxID is the maximum length of an endpoint's ID or a node's name, in bytes.
const maxID = 253

// Parse parses a key that a Source follows. Even if it returns an error, the subject contains the
// service if that is known.
func (k Keys) Parse(key string) (Subject, error) {
	if key == k.Pending() {
		return Subject{Kind: PendingKind}, nil
	}
	rest, _ := strings.CutPrefix(key, k.Prefix)
	folder, rest, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	switch "/" + folder + "/" {
	case VIPFolder:
		return ParseVIP(rest)
	case OwnershipFolder:
		s, err := ParseVIP(strings.TrimPrefix(rest, "policy/"))
		s.Kind = PolicyKind
		return s, err
	case PoolFolder:
		s := Subject{Kind: PoolKind, OfPool: balancer.Name(rest)}
		if !s.OfPool.Valid() {
			return Subject{}, fmt.Errorf("%s has no valid pool name: names are DNS labels of a-z, 0-9 and -", Quote(key))
		}
		return s, nil
	case NodeFolder:
		return parseNode(key, rest)
	case HostFolder:
		return Subject{Kind: HostKind, Node: rest}, CheckNode(rest)
	}
	return k.parseOfService(key, folder, rest)
}

// parseOfService parses a key in which a service's name follows the folder.
func (k Keys) parseOfService(key, folder, rest string) (Subject, error) {
	name, id, deeper := strings.Cut(rest, "/")
	s := Subject{Of: balancer.Name(name)}
	if !s.Of.Valid() {
		s.Of = ""
		return s, fmt.Errorf("%s has no valid service name: names are DNS labels of a-z, 0-9 and -", Quote(key))
	}
	switch "/" + folder + "/" {
	case ServiceFolder:
		if deeper {
			return s, fmt.Errorf("%s is not a service's key: keys below %s are not allowed", Quote(key), k.Service(s.Of))
		}
		s.Kind = ServiceKind
	case EndpointFolder:
		if err := CheckID(id); err != nil {
			return s, err
		}
		s.Kind, s.ID = EndpointKind, balancer.EndpointID{Service: s.Of, ID: id}
	case OverrideFolder:
		t, err := balancer.ParseTarget(s.Of, id)
		if err != nil {
			return s, err
		}
		if t.Address() != id {
			return s, fmt.Errorf("the address %q must be written as %q here, so that each endpoint has only one key", id, t.Address())
		}
		s.Kind, s.Target = OverrideKind, t
	}
	return s, nil
}

// ParseVIP parses the last part of an address's key.
func ParseVIP(address string) (Subject, error) {
	a, err := decode.ParseAddr(address)
	switch {
	case err != nil:
		return Subject{}, err
	case a.String() != address:
		return Subject{}, fmt.Errorf("the address %s must be written as %q here, so that each address has only one key", Quote(address), a)
	}
	return Subject{Kind: VIPKind, VIP: a}, nil
}

func parseNode(key, rest string) (Subject, error) {
	node, name, _ := strings.Cut(rest, "/")
	if err := CheckNode(node); err != nil {
		return Subject{}, err
	}
	if name != ConfigName {
		return Subject{}, fmt.Errorf("%s is not a node's configuration", Quote(key))
	}
	return Subject{Kind: NodeConfigKind, Node: node}, nil
}

// CheckID returns the mistake in an endpoint's ID, or nil.
func CheckID(id string) error {
	return checkPart(id, "an endpoint needs an ID: endpoints/SERVICE/ID", "ID", "an endpoint")
}

// CheckNode returns the mistake in a node's name, or nil.
func CheckNode(name string) error {
	return checkPart(name, "a node needs a name", "name", "a node")
}

// checkPart returns the mistake in a part of a key, or nil. The parameters what and owner describe
// the part in the error.
func checkPart(text, missing, what, owner string) error {
	switch {
	case text == "":
		return errors.New(missing)
	case len(text) > maxID:
		return fmt.Errorf("the %s of %s must have at most %d bytes, but has %d", what, owner, maxID, len(text))
	case strings.Contains(text, "/") || !printable(text):
		return fmt.Errorf("the %s %s of %s is not valid: use only printable characters, and neither / nor spaces", what, Quote(text), owner)
	}
	return nil
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// Quote quotes foreign text and shortens it.
func Quote(text string) string {
	const maxShown = 120
	if len(text) > maxShown {
		return strconv.Quote(text[:maxShown]) + "..."
	}
	return strconv.Quote(text)
}
