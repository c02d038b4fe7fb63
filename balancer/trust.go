package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"vipd/balancer/snap"
)

// fromEtcd reports whether s is from etcd. People other than this host's administrators may write
// to etcd.
func fromEtcd(s *Service) bool { return s.Origin.Key != "" }

// ExecUser is the default user of exec checks if vipd runs as root.
const ExecUser = "nobody"

// WantsUser reports whether s is from etcd and its exec check names a user other than ExecUser. No
// node permits this: health.allow_exec lets other users run programs, but not as root or in a
// privileged group.
func WantsUser(s *Service) bool {
	return indexWantedUser(s) >= 0
}

func indexWantedUser(s *Service) int {
	return slices.IndexFunc(s.Checks(), func(h *Health) bool {
		return fromEtcd(s) && h.Type == ExecHealth && h.User != "" && h.User != ExecUser
	})
}

// DefaultTLSDir is the default folder whose TLS files the checks of services from etcd may use.
const DefaultTLSDir = "/etc/vipd/tls"

// RefusedFile returns the field and path of a TLS file that a check from etcd may not use on this
// node, because vipd reads it as root. Both are "" if all files are allowed.
func (env *Env) RefusedFile(s *Service) (field, path string) {
	if !fromEtcd(s) {
		return "", ""
	}
	for at, h := range s.Checks() {
		for i, path := range []string{h.CAFile, h.CertFile, h.KeyFile} {
			inside, err := filepath.Rel(env.tlsDir(), path)
			if path != "" && (err != nil || !filepath.IsLocal(inside)) {
				return s.CheckField(at, healthPaths()[i]), path
			}
		}
	}
	return "", ""
}

func (env *Env) tlsDir() string { return cmp.Or(env.TLSDir, DefaultTLSDir) }

// LogsTo returns the access log of s: JournalLog, a file, or "" for no log. It returns false if the
// node's configuration must decide, because s sets no log, or because s is from etcd and names a
// file. vipd would write that file as root.
func (s *Service) LogsTo() (to string, ok bool) {
	if s.AccessLog == nil || fromEtcd(s) && *s.AccessLog != "" && *s.AccessLog != JournalLog {
		return "", false
	}
	return *s.AccessLog, true
}

// refusesVIP explains why a service from etcd may not claim vip on this node. It returns "" if the
// service may claim vip. The parameter owned is true if only one host has the address at a time. If
// this node also has an address of another node, the address counts as this node's own, because the
// claim would not cut off the other node.
func (env *Env) refusesVIP(vip netip.Addr, owned bool) string {
	i := slices.IndexFunc(env.Reserved, func(r Reserved) bool { return r.Addr == vip && r.Port == 0 })
	node, ofNode := env.Nodes.Get(vip)
	own := slices.Contains(env.Local, vip)
	switch {
	case ofNode && !own && !slices.Contains(env.Allowed, hostPrefix(vip)):
		return fmt.Sprintf("it is an address of node %s, which this host could no longer reach. Use another address, or add %s to addresses.allowed",
			node, hostPrefix(vip))
	case i >= 0 && !slices.Contains(env.Allowed, hostPrefix(vip)):
		return fmt.Sprintf("it is %s, which this node could no longer reach. Use another address, or add %s to addresses.allowed",
			env.Reserved[i].Description, hostPrefix(vip))
	case len(env.Allowed) > 0:
		return "" // the networks apply to all services, including services from files
	case vip.IsLoopback(), vip.IsLinkLocalUnicast(), vip.IsMulticast():
		return "services from etcd may claim loopback, link-local and multicast addresses only if the node's addresses.allowed contains them"
	case own && !owned:
		return "it is this node's own address, which services from etcd may claim only if the node's addresses.allowed contains it"
	}
	return ""
}

// If key contains a port that a program on the node's own addresses needs, reservedPort describes
// that program, and no service from etcd may claim key. For a range, it lists all such ports. It
// returns "" if there are none.
func (env *Env) reservedPort(key Key) string {
	var inside []string
	for _, r := range env.Reserved {
		switch {
		case r.Port == 0 || !key.Port.Contains(r.Port) || r.Proto != key.Proto || r.Addr.IsValid() && r.Addr != key.Addr:
		case !key.Port.IsRange():
			return r.Description
		default:
			inside = append(inside, fmt.Sprintf("port %d (%s)", r.Port, r.Description))
		}
	}
	const maxNamed = 5
	if more := len(inside) - maxNamed; more > 0 {
		inside = append(inside[:maxNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(inside, ", ")
}

// portAdvice ends the messages about reserved ports.
const portAdvice = "services from etcd can't use it. Choose another port, or define the service in the node's own file"

// notServed connects a VIP and the reason why a node does not serve it, in messages.
const notServed = " is not served: "

// Untrusted returns a problem for each setting of a service from etcd that nodes refuse or may
// refuse. The nodes' configurations are unknown: an error means that all nodes refuse the setting,
// and a warning means that nodes refuse it unless their configuration allows it. The entries of
// reserved apply to all nodes, and nodes contains the live nodes.
func Untrusted(s *Service, reserved []Reserved, nodes snap.Map[NodeName, *Node]) (all []Problem) {
	c := *s
	c.Origin = Origin{Key: "etcd"} // trust depends only on the store
	if c.Health != nil {
		h := *c.Health
		h.From = HealthFromNode // checks by the fleet need the same permissions
		c.Health = &h
	}
	env := Env{NodePortAddresses: []netip.Addr{netip.IPv4Unspecified()}, Reserved: reserved, Nodes: NodeAddresses(nodes, "")}
	for _, n := range nodes.All() {
		for _, a := range n.Addresses {
			if containsAddr(n.AllowedEndpoints, a) {
				env.AllowedEndpoints = append(env.AllowedEndpoints, hostPrefix(a))
			}
		}
	}
	env.Capabilities.Protocols = []Protocol{TCP, UDP, SCTP}
	strict := compileService(&env, &c, &Inputs{}).problems
	strict = slices.DeleteFunc(strict, aboutEndpoints)
	for _, vip := range c.Addresses() { // a node that serves a VIP allows it
		env.Allowed = append(env.Allowed, hostPrefix(vip))
	}
	for a := range env.Nodes.Keys() {
		env.Local = append(env.Local, a) // each is the own address of some host
	}
	allowing := compileService(&env, &c, &Inputs{}).problems
	for _, p := range slices.Concat(strict, slices.DeleteFunc(allowing, func(p Problem) bool { return !aboutEndpoints(p) })) {
		switch {
		case p.Kind == PortReserved, p.Field == "discover.exec": // no node allows such a setting
		case p.Kind == Refused:
			p.Severity = SeverityWarning
			p.Text = strings.Replace(p.Text, notServed, " is served only on nodes that allow it: ", 1)
		default:
			continue
		}
		p.Origin = Origin{}
		all = append(all, p)
	}
	return all
}

func aboutEndpoints(p Problem) bool { return strings.HasPrefix(p.Field, "endpoints") }

// hostPrefix returns the network that contains only a.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// endpointRefusal is the reason why a node does not use an endpoint. The zero value means that the
// node uses it.
type endpointRefusal string

const (
	// privateAddress means that the endpoint is at a loopback or link-local address.
	privateAddress endpointRefusal = "private"
	// privateAnswer means that DNS returned a loopback or link-local address.
	privateAnswer endpointRefusal = "answer"
	// metadataAddress means that the endpoint is a cloud's metadata service, which often has this
	// host's credentials.
	metadataAddress endpointRefusal = "metadata"
	// ownAddress means that the endpoint is at one of the node's own addresses, so clients could
	// bypass the node's firewall.
	ownAddress endpointRefusal = "own"
	// nodePort means that the traffic or the checks would use a low port of another node. That node
	// may accept such connections only from this node.
	nodePort endpointRefusal = "node"
	// etcdPort means that the endpoint is at an etcd port on this node, on another node or on a
	// member of etcd.
	etcdPort endpointRefusal = "etcd"
	// etcdCheck means that the endpoint's checks would use an etcd port.
	etcdCheck endpointRefusal = "check"
)

// refusesEndpoint returns the reason why this node does not use the endpoint e from etcd for
// service s. The parameter hostOnly is the result of servesHostOnly.
func (env *Env) refusesEndpoint(s *Service, e *Endpoint, hostOnly bool) endpointRefusal {
	if !trustsAddress(env.Allowed, e.Address, hostOnly) {
		return privateAddress
	}
	named := slices.Contains(env.AllowedEndpoints, hostPrefix(e.Address))
	if !named && isMetadata(e.Address) {
		return metadataAddress // larger networks in AllowedEndpoints do not allow this address
	}
	_, own := slices.BinarySearchFunc(env.Local, e.Address, netip.Addr.Compare)
	node := env.Nodes.Has(e.Address)
	etcd := slices.ContainsFunc(env.Reserved, func(r Reserved) bool { return r.Etcd && r.Port == 0 && r.Addr == e.Address })
	if !own && !node && !etcd {
		return ""
	}
	ofEtcd := func(port PortRange) bool {
		return slices.ContainsFunc(env.Reserved, func(r Reserved) bool { return r.Etcd && r.Port != 0 && port.Contains(r.Port) })
	}
	low := func(port PortRange) bool { return port.First() < firstNodePort }
	switch {
	case s.checksPort(e, ofEtcd):
		return etcdCheck
	case named:
		return ""
	case slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == TCP && ofEtcd(e.TargetPorts(&p)) }):
		return etcdPort
	case containsAddr(env.AllowedEndpoints, e.Address):
		return ""
	case own:
		return ownAddress
	case node && (s.checksPort(e, low) || slices.ContainsFunc(s.Ports, func(p Port) bool { return low(e.TargetPorts(&p)) })):
		return nodePort
	}
	return ""
}

// refusesAnswer reports whether e was found by DNS at a loopback or link-local address. If this
// were allowed, the owner of the name could send clients to local programs. The name localhost and
// addresses in AllowedEndpoints are allowed.
func (env *Env) refusesAnswer(e *Endpoint) bool {
	switch e.From.Kind {
	case HostLookup:
		return strings.TrimSuffix(e.Name, ".") != "localhost" && !trustsAddress(env.AllowedEndpoints, e.Address, false)
	case ServiceLookup:
		return !trustsAddress(env.AllowedEndpoints, e.Address, false)
	}
	return false
}

// isMetadata reports whether a is a known address of a cloud's metadata service. Link-local
// metadata addresses, such as 169.254.169.254, are refused as link-local.
func isMetadata(a netip.Addr) bool {
	switch a.String() {
	case "fd00:ec2::254", // Amazon
		"fd20:ce::254",    // Google
		"100.100.100.200", // Alibaba
		"168.63.129.16",   // Azure
		"192.0.0.192":     // Oracle
		return true
	}
	return false
}

// checksPort reports whether a check of e, or its agent, has its own port, and the function port
// returns true for that port.
func (s *Service) checksPort(e *Endpoint, port func(PortRange) bool) bool {
	return !e.IsUnchecked() && slices.ContainsFunc(slices.Concat(s.Checks(), s.Questions()), func(h *Health) bool {
		own := e.CheckPort(h)
		return own != 0 && port(PortRange(own))
	})
}

// trustsAddress reports whether a node trusts an endpoint from etcd at a. The parameter allowed is
// the node's addresses.allowed. Programs on loopback and link-local addresses, such as cloud
// metadata services, often trust everyone who can reach them. Users who may write to etcd must
// therefore not be able to publish such programs, or send checks to them.
//
// If here is true, all clients are programs on this host. Loopback addresses are then trusted,
// because these programs can reach them anyway. Otherwise, a must be in an allowed network that
// contains only loopback or only link-local addresses.
func trustsAddress(allowed []netip.Prefix, a netip.Addr, here bool) bool {
	var bits int // of the largest network with only such addresses
	switch {
	case NotUnicast(a) != "":
		return false
	case a.IsLoopback() && here:
		return true
	case a.IsLoopback() && a.Is4():
		bits = 8
	case a.IsLoopback():
		bits = 128
	case a.IsLinkLocalUnicast() && a.Is4():
		bits = 16
	case a.IsLinkLocalUnicast():
		bits = 10
	default:
		return true
	}
	return slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Bits() >= bits && p.Contains(a) })
}

// servesHostOnly reports whether all VIPs of s are allowed loopback addresses, so all clients are
// on this host.
func servesHostOnly(allowed []netip.Prefix, s *Service) bool {
	if slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 }) {
		return false
	}
	return !slices.ContainsFunc(s.Addresses(), func(vip netip.Addr) bool {
		return !vip.IsLoopback() || fromEtcd(s) && !containsAddr(allowed, vip)
	})
}
