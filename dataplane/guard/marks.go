package guard

import "fmt"

// markBits holds the bits of packet and connection marks that the guard uses.
type markBits struct {
	// masquerade marks a connection that must be masqueraded, in a connection mark.
	masquerade uint32
	// ours marks a connection that was opened to a frontend, in a connection mark. It differs from
	// masquerade because other programs copy connection marks to packets (CONNMARK --restore-mark).
	ours uint32
	// never marks a connection whose source is never changed, in a connection mark.
	never uint32
}

// markBit returns a bit after the configured bit. Bit 0 follows bit 31.
func markBit(bit, after int) uint32 { return 1 << ((bit + after) % 32) }

// newMarkBits returns three consecutive bits, starting with the configured bit.
func newMarkBits(bit int) markBits {
	return markBits{masquerade: markBit(bit, 0), ours: markBit(bit, 1), never: markBit(bit, 2)}
}

// MarkBits returns the bit of connection marks that marks connections to frontends, for modes that
// mark connections themselves ([dataplane.Needs].Marked). The argument is Options.MasqueradeBit.
func MarkBits(bit int) uint32 { return newMarkBits(bit).ours }

// Mark returns the iptables rule that sets MarkBits, without "-A" and the name of a chain.
func Mark(bit int) string { return "-j CONNMARK --set-xmark " + valueMask(MarkBits(bit)) }

// valueMask formats a bit as value and mask.
func valueMask(bit uint32) string { return fmt.Sprintf("%#x/%#x", bit, bit) }
