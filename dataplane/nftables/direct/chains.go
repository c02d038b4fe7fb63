package direct

import (
	"fmt"
	"net/netip"
	"strings"

	"vipd/dataplane/internal/nft"
)

// layout describes the devices and routes that the table depends on.
type layout struct {
	// arriving lists the devices on which clients may arrive, and leaving lists the endpoints'
	// devices.
	arriving, leaving []device
	// via maps each endpoint that this host reaches without a router to the endpoint's device.
	via map[netip.Addr]uint32
}

// deviceTo returns the name of an endpoint's device, or "" if the endpoint is behind a router or on
// this host.
func (l layout) deviceTo(a netip.Addr) string {
	for _, d := range l.leaving {
		if d.index == l.via[a] {
			return d.name
		}
	}
	return ""
}

// addChains adds the sets and chains of both families. It rewrites the rules of existing chains.
func addChains(tx *nft.Tx, x nft.Table, families []*family, l layout, needed []chain) {
	write := func(c *nft.Chain, rules []nft.Rule) {
		tx.AddChain(x, c)
		tx.FlushChain(x, c.Name)
		for _, r := range rules {
			tx.AddRule(x, c.Name, r)
		}
	}
	for _, y := range families {
		for _, s := range y.sets() {
			tx.AddSet(x, s)
		}
	}
	for _, c := range needed {
		tx.AddChain(x, &nft.Chain{Name: c.String()}) // rules of other chains may lead to it
	}
	for _, c := range needed {
		for _, y := range families {
			if y.TableFamily == c.family {
				write(&nft.Chain{Name: c.String()}, y.rules(c, l.leaving))
			}
		}
	}
	rules := []nft.Rule{{Do: []nft.Stmt{nft.Is{Field: nft.PacketType, Not: true}, nft.Accept}}}
	for _, y := range families {
		rules = append(rules, y.arrivingRules(l.leaving)...)
	}
	write(&nft.Chain{Name: arriving}, rules)
	for _, d := range l.arriving {
		var do []nft.Rule
		for _, tag := range [][]byte{{0x81, 0x00}, {0x88, 0xa8}} { // a frame of a VLAN arrives again on the VLAN's device, if it exists
			link := nft.Raw{Header: nft.LinkHeader, Offset: 12, Size: 2}
			number := nft.AnyBit{Of: nft.Raw{Header: nft.LinkHeader, Offset: 14, Size: 2}, Mask: []byte{0x0f, 0xff}}
			do = append(do, nft.Rule{Do: []nft.Stmt{nft.Equal{Of: link, Value: tag}, number, nft.Accept}})
		}
		hook := &nft.Hook{Type: nft.Filter, Point: nft.Ingress, Device: d.name}
		write(&nft.Chain{Name: chainOf(d), Hook: hook}, append(do, nft.Rule{Do: []nft.Stmt{nft.Goto(arriving)}}))
	}
}

func chainOf(d device) string {
	plain := strings.Map(func(r rune) rune {
		if strings.ContainsRune(".-_", r) || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, d.name)
	return fmt.Sprintf("device-%d-%s", d.index, plain)
}
