package portmap

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// Kind describes a table, and how its rules use the numbers of its map.
type Kind struct {
	// Name is the table's name.
	Name string
	// Chains are the base chains. Rules returns a chain's rules, which look up the numbers.
	Chains []nft.Chain
	Rules  func(chain string, number nft.Lookup) []nft.Rule
	// Data is the type of the numbers.
	Data nft.Field
}

func (k *Kind) tableOf(family inet.Family) (nft.Table, *nft.Set) {
	t := nft.Table{Family: nft.IPv4, Name: k.Name}
	if family == inet.IPv6 {
		t.Family = nft.IPv6
	}
	return t, &nft.Set{Name: "numbers", Key: nft.Concat{nft.Daddr, nft.L4proto, nft.Dport}, Data: k.Data, Interval: true}
}

// define adds steps to a transaction that create an empty table and replace an existing table.
func (k *Kind) define(tx *nft.Tx, at nft.Table, numbers *nft.Set) {
	tx.AddTable(at) // deleting a missing table would fail
	tx.DeleteTable(at)
	tx.AddTable(at)
	tx.AddSet(at, numbers)
	for _, c := range k.Chains {
		tx.AddChain(at, &c)
		for _, r := range k.Rules(c.Name, nft.Lookup{Key: numbers.Key, In: numbers}) {
			tx.AddRule(at, c.Name, r)
		}
	}
}

// element returns the element that maps a key's ports to a number.
func (k *Kind) element(at balancer.Key, number uint32) nft.Elem {
	place := func(port uint16) nft.Bytes { return nft.Bytes{}.Addr(at.Addr).Proto(at.Proto.Number()).Port(port) }
	e := nft.Elem{Key: place(at.Port.First()), KeyEnd: place(at.Port.Last()), Data: nft.Bytes{}.Number(number)}
	if k.Data == nft.Dport {
		e.Data = nft.Bytes{}.Port(uint16(number))
	}
	return e
}

// Render returns the tables with these entries in nft syntax. It omits tables without entries.
func (k *Kind) Render(numbers map[balancer.Key]uint32) string {
	var b strings.Builder
	for _, family := range inet.Families() {
		table, set := k.tableOf(family)
		var all []nft.Elem
		for _, at := range slices.SortedFunc(maps.Keys(numbers), byFirstPort) {
			if inet.Of(at.Addr) == family {
				all = append(all, k.element(at, numbers[at]))
			}
		}
		if len(all) == 0 {
			continue
		}
		var tx nft.Tx
		k.define(&tx, table, set)
		tx.Add(table, set, all...)
		b.WriteString(tx.Text())
	}
	return b.String()
}

// byFirstPort orders keys by address, protocol and first port.
func byFirstPort(a, b balancer.Key) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port.First(), b.Port.First()))
}
