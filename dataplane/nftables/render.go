package nftables

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane/internal/nft"
)

// form is the kernel's form of a frontend: its choice, and the backend in each slot.
type form struct {
	choice choice
	// label is the name of the service and port. The frontend's element in the map frontends has it
	// as its comment.
	label string
	slots []netip.AddrPort
	// fixed reports whether the order of the slots must not change.
	fixed bool
	// ids maps backends to their ids if the choice is indirect.
	ids     map[netip.AddrPort]uint32
	targets map[uint16]uint16
}

// labelOf returns the frontend's service and port: "web/http", or "web" if the port has no name.
func labelOf(f *balancer.Frontend) string {
	if f.Port == "" {
		return string(f.Service)
	}
	return string(f.Service) + "/" + f.Port
}

// maxTimeout is the maximum affinity timeout. The kernel's timeouts are 64-bit numbers of
// milliseconds, but nft prints and reads 32-bit seconds.
const maxTimeout = 1<<31*time.Second - time.Second

func render(f *balancer.Frontend) form {
	made := form{label: labelOf(f), choice: choice{method: byChance}}
	if f.Withdrawn {
		made.choice = choice{method: passing, n: 1}
		return made
	}
	backends := active(f)
	if len(backends) == 0 {
		return made
	}
	switch f.Scheduler {
	case balancer.RoundRobin:
		made.choice.method = inTurn
		for _, b := range backends {
			made.slots = append(made.slots, b.Addr)
		}
	case balancer.SourceHash, balancer.Maglev:
		made.choice.method, made.fixed = byClient, true
		made.slots = hashed(backends)
	case balancer.DestinationHash:
		at := pick.New(f.Scheduler, backends, nil).Pick(pick.Flow{VIP: f.AddrPort()}, nil)
		made.slots = []netip.AddrPort{backends[at].Addr}
	default:
		made.slots = weighted(backends)
	}
	made.choice.n = uint32(len(made.slots))
	if f.Key.Port.IsRange() {
		made.choice.ports = f.Key.Port
		made.targets = targetsOf(f.Key.Port, backends[0].Addr.Port())
		made.choice.moved = made.targets != nil
	}
	if f.AffinityTimeout > 0 {
		made.choice.sticky = (min(f.AffinityTimeout, maxTimeout) + time.Second - 1).Truncate(time.Second)
	}
	if made.choice.indirect() {
		made.ids = idsOf(f, backends)
	}
	made.choice.remember(f, made.ids)
	return made
}

// targetsOf maps the ports of a range to the endpoints' ports, which start at first. It returns nil
// if both are the same ports.
func targetsOf(ports balancer.PortRange, first uint16) map[uint16]uint16 {
	if first == ports.First() {
		return nil
	}
	all := make(map[uint16]uint16, ports.Len())
	for i := range uint16(ports.Len()) {
		all[ports.First()+i] = first + i
	}
	return all
}

// remember sets the fields of c for f's affinity. ids maps f's backends to their ids.
func (c *choice) remember(f *balancer.Frontend, ids map[netip.AddrPort]uint32) {
	m := f.AffinityMemories()
	if len(m) > 0 {
		c.memory = newMemory(m[0])
	}
	if len(m) > 1 {
		c.foreign = foreignIDs(f, ids)
	}
	if c.foreign != "" {
		c.own = newMemory(m[1])
		c.ownChain = c.withOwn().chain(f.Key)
	}
}

// idOf returns the id by which affinity remembers an endpoint (see
// [balancer.Frontend.AffinityEndpoint]).
func idOf(endpoint netip.AddrPort) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(endpoint.String())) // a hash never fails
	return max(1, h.Sum32())
}

// foreignIDs returns the ids of f's foreign endpoints, encoded as in choice.foreign. It omits ids
// that f's own backends also have.
func foreignIDs(f *balancer.Frontend, own map[netip.AddrPort]uint32) string {
	var ids []byte
	taken := slices.Collect(maps.Values(own))
	for _, a := range f.Foreign {
		if id := idOf(netip.AddrPortFrom(a, 0)); !slices.Contains(taken, id) {
			ids = binary.BigEndian.AppendUint32(ids, id)
		}
	}
	return string(ids)
}

// idsOf assigns each backend an id that depends on its address. So remembered clients find the
// backend again after a restart, or after it was temporarily removed. On a collision, the later
// backend gets the next free id.
func idsOf(f *balancer.Frontend, backends []balancer.Backend) map[netip.AddrPort]uint32 {
	ids, taken := make(map[netip.AddrPort]uint32, len(backends)), make(map[uint32]bool, len(backends))
	for _, b := range backends {
		id := idOf(f.AffinityEndpoint(b.Addr))
		for taken[id] {
			id = max(1, id+1)
		}
		ids[b.Addr], taken[id] = id, true
	}
	return ids
}

// key returns the bytes that identify a frontend in the keys of maps.
func key(k balancer.Key) nft.Bytes {
	place := nft.Bytes{}.Addr(k.Addr).Proto(k.Proto.Number())
	if k.Port.IsRange() {
		return place.Number(uint32(k.Port))
	}
	return place.Port(k.Port.First())
}

func data(k balancer.Key, a netip.AddrPort) nft.Bytes {
	if k.Port.IsRange() {
		return nft.Bytes{}.Addr(a.Addr())
	}
	return nft.Bytes{}.Addr(a.Addr()).Port(a.Port())
}

// targetKey returns the key in the map range-targets for a port in the range k.
func targetKey(k balancer.Key, port uint16) nft.Bytes { return key(k).Port(port) }

func targetData(port uint16) []byte { return nft.Bytes{}.Port(port) }

// rangeElems returns the elements of ranges for the open ports of the frontend k.
func rangeElems(k balancer.Key, label string, open []balancer.PortRange) []nft.Elem {
	all := make([]nft.Elem, len(open))
	for i, p := range open {
		at := func(port uint16) nft.Bytes {
			return key(balancer.Key{Addr: k.Addr, Proto: k.Proto, Port: balancer.PortRange(port)})
		}
		all[i] = nft.Elem{Key: at(p.First()), KeyEnd: at(p.Last()), Data: nft.Bytes{}.Number(uint32(k.Port)), Comment: label}
	}
	return all
}

func rangeChoice(k balancer.Key, chain string) nft.Elem { return nft.Elem{Key: key(k), Goto: chain} }
