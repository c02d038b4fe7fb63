package main

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
)

// list renders rules in the layout of kube-proxy's iptables mode. One chain has a rule for each
// service. A chain for each service picks an endpoint by probability, and a chain for each endpoint
// marks hairpin traffic and translates. Every rule has a comment, as in kube-proxy. 10,000 services
// with 10 endpoints need 320,005 rules.
type list struct {
	services []listed
}

// listed is one service of a list.
type listed struct {
	name      string
	vip       netip.Addr
	endpoints []netip.Addr
}

// newList returns a list of n services with a number of endpoints each.
func newList(n, endpoints int) *list {
	l := &list{}
	for i, vip := range vips(n) {
		s := listed{name: serviceName(i), vip: vip}
		for j := range endpoints {
			s.endpoints = append(s.endpoints, endpoint(i*endpoints+j))
		}
		l.services = append(l.services, s)
	}
	return l
}

// listBlock is the number of services per COMMIT in a load with several COMMITs. The work of
// iptables-nft-restore grows with the square of the number of chains in one COMMIT.
const listBlock = 25

// full renders all rules for a load into empty tables. It uses one COMMIT or, if blocks is true,
// several.
func (l *list) full(blocks bool) []byte {
	var b bytes.Buffer
	b.WriteString("*nat\n:LIST-SERVICES - [0:0]\n:LIST-POSTROUTING - [0:0]\n:LIST-MARK - [0:0]\n")
	b.WriteString("-A LIST-MARK -j MARK --or-mark 0x4000\n-A LIST-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE\n")
	if blocks {
		b.WriteString("COMMIT\n")
	}
	size := len(l.services)
	if blocks {
		size = listBlock
	}
	for block := range slices.Chunk(l.services, size) {
		if blocks {
			b.WriteString("*nat\n")
		}
		for i := range block {
			block[i].chains(&b)
		}
		for i := range block {
			block[i].entry(&b)
		}
		if blocks {
			b.WriteString("COMMIT\n")
		}
	}
	if blocks {
		b.WriteString("*nat\n")
	}
	for _, hook := range []string{"PREROUTING", "OUTPUT"} {
		fmt.Fprintf(&b, "-A %s -m comment --comment \"service portals\" -j LIST-SERVICES\n", hook)
	}
	b.WriteString("-A POSTROUTING -m comment --comment \"postrouting rules\" -j LIST-POSTROUTING\nCOMMIT\n")
	return b.Bytes()
}

// partial renders a change like kube-proxy: the complete chain of all services, and the chains of
// changed services. It removes the chains of the services in gone.
func (l *list) partial(changed, gone []listed) []byte {
	var b bytes.Buffer
	b.WriteString("*nat\n:LIST-SERVICES - [0:0]\n")
	for i := range changed {
		changed[i].chains(&b)
	}
	for i := range l.services {
		l.services[i].entry(&b)
	}
	for i := range gone {
		gone[i].drop(&b)
	}
	b.WriteString("COMMIT\n")
	return b.Bytes()
}

// chain returns the name of a chain, which is a hash of its purpose and as long as kube-proxy's
// names.
func chain(kind, of string) string {
	h := fnv.New64a()
	h.Write([]byte(of)) // a hash never fails
	return fmt.Sprintf("LIST-%s-%016X", kind, h.Sum64())
}

func (s *listed) chain() string { return chain("SVC", s.name) }

func (s *listed) endpointChain(a netip.Addr) string { return chain("SEP", s.name+a.String()) }

// entry writes the service's rule in the chain of all services.
func (s *listed) entry(b *bytes.Buffer) {
	fmt.Fprintf(b, "-A LIST-SERVICES -d %s/32 -p tcp -m comment --comment \"bench/%s:http cluster IP\" -m tcp --dport %d -j %s\n",
		s.vip, s.name, servicePort, s.chain())
}

// chains writes the commands that empty and fill the service's own chains.
func (s *listed) chains(b *bytes.Buffer) {
	fmt.Fprintf(b, ":%s - [0:0]\n", s.chain())
	for _, e := range s.endpoints {
		fmt.Fprintf(b, ":%s - [0:0]\n", s.endpointChain(e))
	}
	fmt.Fprintf(b, "-A %s ! -s %s -d %s/32 -p tcp -m comment --comment \"bench/%s:http cluster IP\" -m tcp --dport %d -j LIST-MARK\n",
		s.chain(), network(clientBase, clientBits), s.vip, s.name, servicePort)
	for i, e := range s.endpoints {
		fmt.Fprintf(b, "-A %s -m comment --comment \"bench/%s:http -> %s:%d\"", s.chain(), s.name, e, targetPort)
		if left := len(s.endpoints) - i; left > 1 {
			fmt.Fprintf(b, " -m statistic --mode random --probability %.11f", 1/float64(left))
		}
		fmt.Fprintf(b, " -j %s\n", s.endpointChain(e))
	}
	for _, e := range s.endpoints {
		sep := s.endpointChain(e)
		fmt.Fprintf(b, "-A %s -s %s/32 -m comment --comment \"bench/%s:http\" -j LIST-MARK\n", sep, e, s.name)
		fmt.Fprintf(b, "-A %s -p tcp -m comment --comment \"bench/%s:http\" -m tcp -j DNAT --to-destination %s:%d\n", sep, s.name, e, targetPort)
	}
}

// drop writes the commands that remove the service's own chains.
func (s *listed) drop(b *bytes.Buffer) {
	for _, c := range s.allChains() {
		fmt.Fprintf(b, ":%s - [0:0]\n", c)
	}
	for _, c := range s.allChains() {
		fmt.Fprintf(b, "-X %s\n", c)
	}
}

func (s *listed) allChains() []string {
	all := []string{s.chain()}
	for _, e := range s.endpoints {
		all = append(all, s.endpointChain(e))
	}
	return all
}
