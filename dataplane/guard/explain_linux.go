package guard

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/nft"
)

// Explain asks the kernel which sets of the guard have f, and, where it has source ranges, whether they have client: allowed.
// It has its own connections to the kernel, so that it disturbs no Guard at work.
func Explain(f *balancer.Frontend, client netip.Addr) (objects []dataplane.Object, allowed bool, err error) {
	has, native, done, err := asker(f.Addr)
	if err != nil {
		return nil, false, err
	}
	defer done()
	for _, def := range setDefs() {
		if def.native && !native || def.entries == nil || def.name == allowedSet || def.name == tunnelsSet || def.name == answersSet || def.behind || len(def.entries(f)) == 0 {
			continue
		}
		name, in, err := has(&def, placeOf(f.Key))
		if err != nil {
			return nil, false, err
		}
		if in || mustHold(&def) {
			objects = append(objects, dataplane.Object{Name: name, Says: f.Key.String(), Missing: !in})
		}
	}
	if !isRestricted(f) {
		return objects, true, nil
	}
	at := placeOf(f.Key)
	at.Net = netip.PrefixFrom(client, client.BitLen())
	for _, def := range setDefs() {
		if def.name == allowedSet {
			name, in, err := has(&def, at)
			if err != nil {
				return nil, false, err
			}
			allowed = in
			says := "does not have " + client.String()
			if in {
				says = "has " + client.String()
			}
			objects = append(objects, dataplane.Object{Name: name, Says: says})
		}
	}
	return objects, allowed, nil
}

// asker returns what asks whether an entry is in a set, in the form that the guard has in the kernel, whether that is nf_tables', and
// what ends asking.
func asker(a netip.Addr) (has func(*setDef, ipset.Entry) (name string, in bool, err error), native bool, done func(), err error) {
	family := inet.IPv4
	if a.Is6() {
		family = inet.IPv6
	}
	l := newLayout(family)
	if conn, err := nft.Open(); err == nil {
		if there, err := conn.HasTable(l.table); err == nil && there {
			return func(def *setDef, e ipset.Entry) (string, bool, error) {
				s := l.sets[def.name]
				_, err := conn.Find(l.table, s, []nft.Elem{element(e)})
				if errors.Is(err, unix.ENOENT) {
					return "set " + s.Name + " of table " + l.table.String(), false, nil
				}
				return "set " + s.Name + " of table " + l.table.String(), err == nil, err
			}, true, func() { _ = conn.Close() }, nil
		}
		_ = conn.Close() // nothing was written
	}
	conn, err := ipset.Open()
	if err != nil {
		return nil, false, nil, err
	}
	return func(def *setDef, e ipset.Entry) (string, bool, error) {
		name := setName(def.name, family)
		in, err := conn.Has(name, e)
		if errors.Is(err, ipset.ErrNotFound) {
			err = nil
		}
		return "ipset " + name, in, err
	}, false, conn.Close, nil
}
