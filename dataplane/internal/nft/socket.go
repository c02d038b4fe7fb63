package nft

// OwnSocket matches packets to sockets of this host that may have addresses of other hosts
// (IP_TRANSPARENT). It does not match sockets that are bound to every address, so it ignores the
// listeners of other programs. It needs Linux 5.11.
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
