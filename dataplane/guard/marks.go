package guard

import "fmt"

// markBits holds the bits that the guard uses in packet and connection marks.
type markBits struct {
	// masquerade is a bit of the connection mark. It marks a connection that must be masqueraded.
	masquerade uint32
	// ours is a bit of the connection mark. It marks a connection to a frontend. It differs from
	// masquerade because other programs copy connection marks to packets (CONNMARK --restore-mark).
	ours uint32
	// never is a bit of the connection mark. It marks a connection whose source address is never
	// changed.
	never uint32
}

// markBit returns a bit after the configured bit. Bit 0 follows bit 31.
func markBit(bit, after int) uint32 { return 1 << ((bit + after) % 32) }

// newMarkBits returns three consecutive bits, starting with the configured bit.
func newMarkBits(bit int) markBits {
	return markBits{masquerade: markBit(bit, 0), ours: markBit(bit, 1), never: markBit(bit, 2)}
}

// MarkBits returns the connection mark's bit for connections to frontends. It is for modes that
// mark connections themselves ([dataplane.Needs].Marked). The argument is Options.MasqueradeBit.
func MarkBits(bit int) uint32 { return newMarkBits(bit).ours }

// Mark returns the iptables rule that sets MarkBits, without "-A" and a chain name.
func Mark(bit int) string { return "-j CONNMARK --set-xmark " + valueMask(MarkBits(bit)) }

// valueMask formats a bit as value and mask.
func valueMask(bit uint32) string { return fmt.Sprintf("%#x/%#x", bit, bit) }
