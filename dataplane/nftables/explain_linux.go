package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// Explain implements [dataplane.Explains]. It looks the connection up in the kernel's maps, as a
// packet would.
func (d *Dataplane) Explain(_ context.Context, f *balancer.Frontend, client netip.AddrPort) (dataplane.Explanation, error) {
	var x dataplane.Explanation
	rest := 1.0
	if d.direct != nil {
		var err error
		if x, rest, err = d.direct.Explain(f, client); err != nil || rest == 0 {
			return x, err
		}
	}
	conn, err := nft.Open()
	if err != nil {
		return x, err
	}
	q := elementQuery{schema: d.family(f.Key).schema, conn: conn, f: f, client: client.Addr(), form: render(f)}
	err = q.explain()
	return mixed(x, q.out, rest), errors.Join(err, conn.Close())
}

// mixed combines two explanations: nat for the connections that NAT serves, with probability rest,
// and direct for all other connections.
func mixed(direct, nat dataplane.Explanation, rest float64) dataplane.Explanation {
	if rest == 1 {
		if direct.Choice != "" {
			nat.Choice = direct.Choice + ": " + nat.Choice
		}
		return nat
	}
	for _, s := range nat.Shares {
		s.Part *= rest
		if i := slices.IndexFunc(direct.Shares, func(other dataplane.Share) bool { return other.Backend == s.Backend }); i >= 0 {
			direct.Shares[i].Part += s.Part
		} else {
			direct.Shares = append(direct.Shares, s)
		}
	}
	direct.Objects = append(direct.Objects, nat.Objects...)
	return direct
}

// elementQuery looks up a connection in a family's maps, and collects the explanation.
type elementQuery struct {
	*schema
	conn   *nft.Conn
	f      *balancer.Frontend
	client netip.Addr
	form   form
	out    dataplane.Explanation
}

func (x *elementQuery) explain() error {
	if err := x.findChain(); err != nil {
		return err
	}
	c := x.form.choice
	if c.n == 0 {
		return nil
	}
	x.out.Choice = map[method]string{byChance: "at random, by weight", inTurn: "in turn", byClient: "by a hash of the client's address"}[c.method]
	if err := x.findSticky(); err != nil {
		return err
	}
	return x.findShares()
}

// findChain looks up the chain that the frontend's packets reach.
func (x *elementQuery) findChain() error {
	if x.f.Key.Port.IsRange() {
		return x.findRange()
	}
	there, err := x.find(x.frontends, key(x.f.Key))
	if err != nil {
		return err
	}
	if len(there) == 0 {
		x.out.Objects = append(x.out.Objects, dataplane.Object{Name: x.nameOf(x.frontends), Missing: true})
		return nil
	}
	number := numberIn(there[0].Data)
	to, err := x.find(x.choices, nft.Bytes{}.Number(number))
	if err != nil {
		return err
	}
	o := dataplane.Object{Name: x.nameOf(x.choices), Missing: len(to) == 0}
	if !o.Missing {
		o.Says = "chain " + to[0].Goto
	}
	x.out.Objects = append(x.out.Objects, dataplane.Object{Name: x.nameOf(x.frontends), Says: fmt.Sprint("number ", number)}, o)
	return nil
}

// findRange looks up the chain that the packets to a port range reach.
func (x *elementQuery) findRange() error {
	to, err := x.find(x.rangeChoices, key(x.f.Key))
	if err != nil {
		return err
	}
	o := dataplane.Object{Name: x.nameOf(x.rangeChoices), Missing: len(to) == 0}
	if !o.Missing {
		o.Says = "chain " + to[0].Goto
	}
	x.out.Objects = append(x.out.Objects, o)
	return x.findTargets()
}

// findTargets looks up the endpoints' ports for a moved range, which endpoints serve on other
// ports.
func (x *elementQuery) findTargets() error {
	if len(x.form.targets) == 0 {
		return nil
	}
	keys := make([]nft.Bytes, 0, len(x.form.targets))
	for port := range x.form.targets {
		keys = append(keys, targetKey(x.f.Key, port))
	}
	there, err := x.find(x.ranged.targets, keys...)
	same := 0
	for _, e := range there {
		if port, target, ok := targetOf(&e); ok && x.form.targets[port] == target {
			same++
		}
	}
	x.out.Objects = append(x.out.Objects, dataplane.Object{
		Name: x.nameOf(x.ranged.targets), Says: fmt.Sprintf("%d of %d ports", same, len(keys)), Missing: same < len(keys),
	})
	return err
}

// backendOf decodes an element's value as one of the frontend's backends.
func (x *elementQuery) backendOf(b []byte) netip.AddrPort {
	first := x.f.Key.Port.First()
	return backendOf(x.f.Key, b, cmp.Or(x.form.targets[first], first))
}

// findSticky looks up the backend that affinity selects for the client.
func (x *elementQuery) findSticky() error {
	if x.form.choice.sticky == 0 {
		return nil
	}
	known, err := x.findClient(x.form.choice.memory)
	if err == nil && len(known) > 0 && slices.Contains(x.form.choice.foreignIDs(), numberIn(known[0].Data)) {
		known, err = x.findClient(x.form.choice.own)
	}
	if err != nil || len(known) == 0 {
		return err
	}
	x.out.Objects = append(x.out.Objects, dataplane.Object{
		Name: x.nameOf(x.sticky), Says: fmt.Sprintf("contains the client for another %s", known[0].Expires.Round(time.Second)),
	})
	led, err := x.find(x.placesOf(x.f.Key).backends, append(key(x.f.Key), known[0].Data...))
	if err == nil && len(led) > 0 { // if the id has no element, its backend gets no new connections, and the client gets another backend
		x.out.Sticky, x.out.Left = x.backendOf(led[0].Data), known[0].Expires
	}
	return err
}

// findClient returns the client's element in the map sticky, for the memory m.
func (x *elementQuery) findClient(m memory) ([]nft.FoundElem, error) {
	who, c := nft.Bytes{}.Addr(x.f.AffinityClient(x.client)), x.form.choice
	if m.wide {
		who = who.Addr(x.f.Addr)
	} else {
		who = append(who, key(x.f.Key)...)
	}
	return x.find(x.sticky, nft.Bytes{}.Number(c.clientHash(m, stickySeed).Sum(who)).Number(c.clientHash(m, stickyAlso).Sum(who)))
}

// findShares reads the slots that a packet may select, and the counters of their backends.
func (x *elementQuery) findShares() error {
	c, slots := x.form.choice, x.placesOf(x.f.Key).eps
	if c.indirect() {
		slots = x.placesOf(x.f.Key).slots
	}
	var keys []nft.Bytes
	if h, ok := c.number().(nft.Jhash); ok {
		keys = append(keys, key(x.f.Key).Number(h.Sum(nft.Bytes{}.Addr(x.client))))
	} else {
		for i := range c.n {
			keys = append(keys, key(x.f.Key).Number(i))
		}
	}
	there, err := x.find(slots, keys...)
	if err != nil {
		return err
	}
	parts, counted := map[netip.AddrPort]float64{}, map[netip.AddrPort]uint64{}
	for _, e := range there {
		to := x.backendOf(e.Data)
		if c.indirect() {
			led, err := x.find(x.placesOf(x.f.Key).backends, append(key(x.f.Key), e.Data...))
			if err != nil || len(led) == 0 {
				return err
			}
			to, e.Packets = x.backendOf(led[0].Data), led[0].Packets
			counted[to] = 0 // the single element of a backend counts for all its slots
		}
		parts[to] += 1 / float64(len(keys))
		counted[to] += e.Packets
	}
	for to, part := range parts {
		x.out.Shares = append(x.out.Shares, dataplane.Share{Backend: to, Part: part})
	}
	slices.SortFunc(x.out.Shares, func(a, b dataplane.Share) int { return a.Backend.Compare(b.Backend) })
	for _, share := range x.out.Shares {
		o := dataplane.Object{Name: x.nameOf(slots), Says: share.Backend.String()}
		x.out.Objects = append(x.out.Objects, o.Counted(counted[share.Backend]))
	}
	if len(there) < len(keys) {
		x.out.Objects = append(x.out.Objects, dataplane.Object{
			Name: x.nameOf(slots), Says: fmt.Sprintf("only %d of %d slots exist", len(there), len(keys)), Missing: true,
		})
	}
	return nil
}

// fewElements is the maximum number of elements in a single request to the kernel.
const fewElements = 200

// find reads elements of a set by their keys. It omits missing elements.
func (x *elementQuery) find(set *nft.Set, keys ...nft.Bytes) (all []nft.FoundElem, err error) {
	for part := range slices.Chunk(keys, fewElements) {
		elems := make([]nft.Elem, len(part))
		for i, k := range part {
			elems[i].Key = k
		}
		found, err := x.conn.Find(x.table, set, elems)
		switch {
		case errors.Is(err, unix.ENOENT) && len(part) > 1: // one of the elements is missing
			for _, k := range part {
				one, err := x.find(set, k)
				if err != nil {
					return nil, err
				}
				all = append(all, one...)
			}
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", x.nameOf(set), err)
		default:
			all = append(all, found...)
		}
	}
	return all, nil
}

// nameOf returns the name of a map as nft prints it: "map frontends of table ip vipd".
func (x *elementQuery) nameOf(s *nft.Set) string {
	return "map " + s.Name + " of table " + x.table.String()
}
