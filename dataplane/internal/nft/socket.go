package nft

// OwnSocket matches packets to this host's transparent sockets, which may have other hosts'
// addresses (IP_TRANSPARENT). It does not match sockets that are bound to all addresses, so it
// ignores other programs' listeners. It needs Linux 5.11.
type OwnSocket struct{}

func (OwnSocket) text(TableFamily) string { return "socket transparent 1 socket wildcard 0" }

func (OwnSocket) write(m *message, _ TableFamily) {
	for _, test := range []struct {
		key   uint32
		value byte
	}{{0, 1}, {2, 0}} { // NFT_SOCKET_TRANSPARENT, NFT_SOCKET_WILDCARD
		m.expr(listElem, "socket", func() {
			m.Wire32(1, test.key)        // NFTA_SOCKET_KEY
			m.Wire32(2, register(first)) // NFTA_SOCKET_DREG
		})
		compare(m, true, []byte{test.value})
	}
}
