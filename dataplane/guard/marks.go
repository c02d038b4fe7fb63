package guard

import "fmt"

// markBits are the bits of marks that the guard uses.
type markBits struct {
	// masquerade in a packet's mark: the connection that it opens gets the node's address for a source.
	masquerade uint32
	// ours in a connection's mark: it was opened to a frontend. It is another bit than masquerade, because others copy
	// marks of connections to packets (CONNMARK --restore-mark).
	ours uint32
	// never in a connection's mark: its source is not changed, for whatever reason.
	never uint32
}

// newMarkBits returns the bits from the one that is configured on; after the highest comes the lowest.
func newMarkBits(bit int) markBits {
	at := func(i int) uint32 { return 1 << ((bit + i) % 32) }
	return markBits{masquerade: at(0), ours: at(1), never: at(2)}
}

// MarkBits are the bits of a connection's mark that say it was opened to a frontend, for modes that mark connections by
// themselves (dataplane.Needs.Marked). The bit is Options.MasqueradeBit.
func MarkBits(bit int) uint32 { return newMarkBits(bit).ours }

// Mark is the rule of iptables, without "-A" and a chain's name, that sets MarkBits.
func Mark(bit int) string { return "-j CONNMARK --set-xmark " + both(MarkBits(bit)) }

// both writes a bit as value and mask.
func both(bit uint32) string { return fmt.Sprintf("%#x/%#x", bit, bit) }
