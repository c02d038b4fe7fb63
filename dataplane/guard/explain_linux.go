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

// Explain returns the sets of the guard that contain f. If f has source ranges, allowed reports
// whether they contain client. It opens its own connection to the kernel, so it does not disturb a
// running [Guard].
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
	if !isRestricted(f) {
		return objects, true, nil
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
