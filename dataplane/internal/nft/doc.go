// Package nft describes nf_tables objects as values, sends them to the kernel in one netlink transaction, and prints the
// same values as input of "nft -f".
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
// Rules are statements over expressions: what "nft" would print, not the kernel's registers. What this package loads is what
// nft would have loaded for the same text, including the user data from which nft prints sets declared by "typeof"; tests
// hold it to that. A transaction takes effect as a whole or not at all.
//
// The package knows the expressions and statements that vipd uses and no others. It imports nothing of vipd but nlsock.
// Values and text are portable; Conn needs Linux.
package nft
