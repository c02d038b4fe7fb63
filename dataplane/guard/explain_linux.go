package guard

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// Explain returns the sets of the guard that contain or must contain f, and the meters that count
// client. If f has source ranges, allowed reports whether they contain client. It opens its own
// connection to the kernel, so it does not disturb a running [Guard].
func Explain(f *balancer.Frontend, client netip.Addr) (objects []dataplane.Object, allowed bool, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = conn.Close() }() // the connection was only used to read
	l := newLayout(inet.Of(f.Addr))
	has := func(set string, e setEntry) (name string, in bool, err error) {
		s := l.setOf(set, e)
		_, err = conn.Find(l.table, s, []nft.Elem{element(e)})
		if errors.Is(err, unix.ENOENT) {
			return "set " + s.Name + " of table " + l.table.String(), false, nil
		}
		return "set " + s.Name + " of table " + l.table.String(), err == nil, err
	}
	for _, def := range setDefs() {
		if def.entries == nil || def.name == allowedSet || def.name == tunnelsSet || def.name == answersSet || def.key == behind || len(def.entries(f)) == 0 {
			continue
		}
		name, in, err := has(def.name, placeOf(f.Key))
		if err != nil {
			return nil, false, err
		}
		if in || mustHold(&def) {
			objects = append(objects, dataplane.Object{Name: name, Says: f.Key.String(), Missing: !in})
		}
	}
	counted, err := explainLimits(conn, l, f, client)
	if objects = append(objects, counted...); err != nil || !isRestricted(f) || f.Withdrawn {
		return objects, true, err
	}
	at := placeOf(f.Key)
	at.Net = netip.PrefixFrom(client, client.BitLen())
	name, allowed, err := has(allowedSet, at)
	if err != nil {
		return nil, false, err
	}
	says := "does not have " + client.String()
	if allowed {
		says = "has " + client.String()
	}
	return append(objects, dataplane.Object{Name: name, Says: says}), allowed, nil
}

// explainLimits returns the meters of f that count client.
func explainLimits(conn *nft.Conn, l *layout, f *balancer.Frontend, client netip.Addr) (objects []dataplane.Object, err error) {
	if !isLimited(f) {
		return nil, nil
	}
	for _, m := range limiterOf(f).meters() {
		source := netip.PrefixFrom(client.WithZone(""), m.key.Bits).Masked()
		_, err := conn.Find(l.table, m.set, []nft.Elem{{Key: nft.Bytes{}.Addr(source.Addr())}})
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return objects, err
		default:
			objects = append(objects, dataplane.Object{Name: "set " + m.set.Name + " of table " + l.table.String(), Says: "counts connections of " + source.String()})
		}
	}
	return objects, nil
}

// FullLimits returns the frontends with a meter that was full in the last minute, so some of their
// connections were not limited. It opens its own connection to the kernel.
func FullLimits() (places []balancer.Key, err error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the connection was only used to read
	for _, of := range inet.Families() {
		l := newLayout(of)
		found, err := conn.Elements(l.table, l.full.Name)
		if err != nil {
			return nil, err
		}
		for i := range found {
			e := entryOf(&found[i].Elem, of)
			for _, p := range []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP} {
				if p.Number() == e.Proto {
					places = append(places, balancer.Key{Addr: e.Addr, Port: e.Port, Proto: p})
				}
			}
		}
	}
	return places, nil
}
