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

// fromEtcd reports whether s is in etcd, where others than this host's own administrators may write.
func fromEtcd(s *Service) bool { return s.Origin.Key != "" }

// ExecUser is the user that exec checks run as where their definition names none, and vipd itself is root.
const ExecUser = "nobody"

// WantsUser reports whether s is in etcd and asks that programs run as another user than ExecUser. No node does that:
// health.allow_exec lets others run programs on it, but not be root, nor a group that is as good.
func WantsUser(s *Service) bool {
	h := s.Health
	return fromEtcd(s) && h != nil && h.Type == ExecHealth && h.User != "" && h.User != ExecUser
}

// DefaultTLSDir is the folder of the files that checks of services from etcd may use for TLS.
const DefaultTLSDir = "/etc/vipd/tls"

// RefusedFile returns the field and the path of a file of TLS that the check of s, which is from etcd, may not use on this
// node: vipd reads it as root. Both are "" if there is none.
func (env *Env) RefusedFile(s *Service) (field, path string) {
	h := s.Health
	if !fromEtcd(s) || h == nil {
		return "", ""
	}
	for i, path := range []string{h.CAFile, h.CertFile, h.KeyFile} {
		inside, err := filepath.Rel(env.tlsDir(), path)
		if path != "" && (err != nil || !filepath.IsLocal(inside)) {
			return "health." + healthPaths()[i], path
		}
	}
	return "", ""
}

func (env *Env) tlsDir() string { return cmp.Or(env.TLSDir, DefaultTLSDir) }

// LogsTo returns where connections to s are logged: JournalLog, a file, or "" for nowhere. Not ok means where the node's
// configuration says: s leaves it out, or is in etcd and names a file, which vipd would write as root.
func (s *Service) LogsTo() (to string, ok bool) {
	if s.AccessLog == nil || fromEtcd(s) && *s.AccessLog != "" && *s.AccessLog != JournalLog {
		return "", false
	}
	return *s.AccessLog, true
}

// refusesVIP says why a service from etcd may not claim vip on a node; "" means that it may. Owned: the address is the node's
// own only because vipd brings it. An address that this node has as well as another one is not lost by a claim.
func (env *Env) refusesVIP(vip netip.Addr, owned bool) string {
	i := slices.IndexFunc(env.Reserved, func(r Reserved) bool { return r.Addr == vip && r.Port == 0 })
	node, ofNode := env.Nodes.Get(vip)
	own := slices.Contains(env.Local, vip)
	switch {
	case ofNode && !own && !slices.Contains(env.Allowed, alone(vip)):
		return fmt.Sprintf("it is an address of node %s, and a host that holds it itself can't reach that node any more. Use another address; if it is meant, define the service in the host's own file, or add %s to addresses.allowed of its configuration",
			node, alone(vip))
	case i >= 0 && !slices.Contains(env.Allowed, alone(vip)):
		return fmt.Sprintf("it is %s, and a node that holds it itself can't reach etcd any more, nor learn that this is mended. Take another address; if it is meant, have the service in the node's own file, or %s in addresses.allowed of its configuration",
			env.Reserved[i].What, alone(vip))
	case len(env.Allowed) > 0:
		return "" // which are asked for services from files as well
	case vip.IsLoopback(), vip.IsLinkLocalUnicast(), vip.IsMulticast():
		return "services from etcd may claim loopback, link-local and multicast addresses only where addresses.allowed of the node's configuration contains them"
	case own && !owned:
		return "it is this node's own address, which services from etcd may claim only where addresses.allowed of the node's configuration contains it"
	}
	return ""
}

// refusesPort says what a port of one of the node's own addresses is that no service from etcd may claim it; "" means
// nothing of that kind.
func (env *Env) refusesPort(key Key) string {
	i := slices.IndexFunc(env.Reserved, func(r Reserved) bool {
		return r.Port == key.Port && r.Proto == key.Proto && (!r.Addr.IsValid() || r.Addr == key.Addr)
	})
	if i < 0 {
		return ""
	}
	return env.Reserved[i].What
}

// portAdvice ends the texts about reserved ports.
const portAdvice = "services from etcd never get it. Choose another port, or have the service in the node's own file"

// notServed stands before the reason for which a VIP is not served on a node.
const notServed = " is not served: "

// Untrusted returns what nodes refuse a service from etcd, as far as that is known without knowing a node: errors are for
// all nodes, warnings for those whose configuration does not allow it. Reserved is what is reserved on all nodes, and nodes are the
// live nodes.
func Untrusted(s *Service, reserved []Reserved, nodes snap.Map[NodeName, *Node]) (all []Problem) {
	c := *s
	c.Origin = Origin{Key: "etcd"} // trust depends on the store alone
	if c.Health != nil {
		h := *c.Health
		h.From = HealthFromNode // a node of the fleet has to allow what each node would
		c.Health = &h
	}
	env := Env{NodePortAddresses: []netip.Addr{netip.IPv4Unspecified()}, Reserved: reserved, Nodes: AddressesOf(nodes, "")}
	for _, n := range nodes.All() {
		for _, a := range n.Addresses {
			if containsAddr(n.AllowedEndpoints, a) {
				env.AllowedEndpoints = append(env.AllowedEndpoints, alone(a))
			}
		}
	}
	env.Capabilities.Protocols = []Protocol{TCP, UDP, SCTP}
	strict := compileService(&env, &c, &Inputs{}).problems
	strict = slices.DeleteFunc(strict, ofEndpoints)
	for _, vip := range c.Addresses() { // a node that serves them allows them
		env.Allowed = append(env.Allowed, alone(vip))
	}
	for a := range env.Nodes.Keys() {
		env.Local = append(env.Local, a) // each is some host's own
	}
	allowing := compileService(&env, &c, &Inputs{}).problems
	for _, p := range slices.Concat(strict, slices.DeleteFunc(allowing, func(p Problem) bool { return !ofEndpoints(p) })) {
		switch {
		case p.Kind == Reserving:
		case p.Kind == Refused:
			p.Severity = SeverityWarning
			p.Text = strings.Replace(p.Text, notServed, " is served only where a node allows it: ", 1)
		default:
			continue
		}
		p.Origin = Origin{}
		all = append(all, p)
	}
	return all
}

// ofEndpoints reports whether a problem is about endpoints.
func ofEndpoints(p Problem) bool { return strings.HasPrefix(p.Field, "endpoints") }

// alone is the network of a alone.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// refusal is why a node does not use an endpoint from etcd; "" means that it does.
type refusal string

const (
	// privateAddress: it is a loopback or link-local address.
	privateAddress refusal = "private"
	// metadataAddress: a cloud answers there for this host alone, often with its credentials.
	metadataAddress refusal = "metadata"
	// ownAddress: it is the node's own, so a program of the node would get what its firewall may keep from clients.
	ownAddress refusal = "own"
	// nodePort: it, or the port of its check, is a low port of another node, which may accept connections there from this node alone.
	nodePort refusal = "node"
	// etcdPort: it is a port of etcd, on this node, another node or a member of etcd.
	etcdPort refusal = "etcd"
	// etcdCheck: the port of its check is a port of etcd there.
	etcdCheck refusal = "check"
)

// refusesEndpoint says why endpoint e of s, which is from etcd, is not used on this node. Here is onlyHere of s.
func (env *Env) refusesEndpoint(s *Service, e *Endpoint, here bool) refusal {
	if !trusted(env.Allowed, e.Address, here) {
		return privateAddress
	}
	named := slices.Contains(env.AllowedEndpoints, alone(e.Address))
	if !named && isMetadata(e.Address) {
		return metadataAddress // no larger network allows it
	}
	_, own := slices.BinarySearchFunc(env.Local, e.Address, netip.Addr.Compare)
	node := env.Nodes.Has(e.Address)
	etcd := slices.ContainsFunc(env.Reserved, func(r Reserved) bool { return r.Etcd && r.Port == 0 && r.Addr == e.Address })
	if !own && !node && !etcd {
		return ""
	}
	ofEtcd := func(port uint16) bool {
		return slices.ContainsFunc(env.Reserved, func(r Reserved) bool { return r.Etcd && r.Port == port && port != 0 })
	}
	low := func(port uint16) bool { return port < firstNodePort }
	switch {
	case s.checksAt(ofEtcd):
		return etcdCheck
	case named:
		return ""
	case slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Protocol == TCP && ofEtcd(e.TargetPort(&p)) }):
		return etcdPort
	case containsAddr(env.AllowedEndpoints, e.Address):
		return ""
	case own:
		return ownAddress
	case node && (s.checksAt(low) || slices.ContainsFunc(s.Ports, func(p Port) bool { return low(e.TargetPort(&p)) })):
		return nodePort
	}
	return ""
}

// isMetadata reports whether clouds are known to answer at a with the metadata of the machine that asks. Link-local addresses,
// such as 169.254.169.254, are not trusted anyway.
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

// checksAt reports whether checks of s use a port of their own for which port returns true.
func (s *Service) checksAt(port func(uint16) bool) bool {
	return s.Health != nil && s.Health.Port != 0 && port(s.Health.Port)
}

// trusted reports whether a node whose addresses.allowed is this takes an endpoint at a from etcd. What listens on loopback
// or link-local addresses is often open to all who get there, such as a cloud's metadata: no user who may write in etcd is
// to publish it at a VIP, nor to have checks sent to it. Loopback ones are taken where clients are programs of this host
// (here), which get there anyway; else both are where allowed has a network of such addresses alone that holds a.
func trusted(allowed []netip.Prefix, a netip.Addr, here bool) bool {
	var bits int // of the greatest network that has such addresses alone
	switch {
	case notUnicast(a) != "":
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

// onlyHere reports whether s has VIPs on loopback alone, which its node grants it: no client comes from elsewhere.
func onlyHere(allowed []netip.Prefix, s *Service) bool {
	if slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 }) {
		return false
	}
	return !slices.ContainsFunc(s.Addresses(), func(vip netip.Addr) bool {
		return !vip.IsLoopback() || fromEtcd(s) && !containsAddr(allowed, vip)
	})
}
