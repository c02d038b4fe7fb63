// Package nft represents nf_tables objects as values, sends them to the kernel in netlink
// transactions, and prints them as input for "nft -f".
//
//	place := nft.Concat{nft.Daddr, nft.L4proto, nft.Dport}
//	services := &nft.Set{Name: "svc", Key: place, Verdict: true}
//
//	var tx nft.Tx
//	tx.AddTable(table)
//	tx.AddSet(table, services)
//	tx.AddChain(table, &nft.Chain{Name: "prerouting", Hook: &nft.Hook{Type: nft.NAT, Point: nft.Prerouting, Priority: -105}})
//	tx.AddRule(table, "prerouting", nft.Rule{Do: []nft.Stmt{nft.Vmap{Of: place, In: services}}})
//	fmt.Print(tx.Text())
//
//	c, err := nft.Open()
//	err = c.Commit(&tx)
//
// Rules consist of statements and expressions as in nft, not of operations on the kernel's
// registers. This package loads exactly the objects that nft would load from the same text,
// including the user data from which nft prints sets that are declared with "typeof". Tests compare
// these objects with nft's. A transaction takes effect either completely or not at all.
//
// The package supports only the expressions and statements that vipd uses. The only package of vipd
// that it imports is nlsock. Values and text are portable. Conn needs Linux.
package nft
