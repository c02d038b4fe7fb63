package userspace

import (
	"net/netip"
	"testing"
	"time"
)

// TestOwnAddressExpires asks for an address that the node had when its addresses were last read.
// After a second, the addresses must be read again, and the address must no longer be the node's.
func TestOwnAddressExpires(t *testing.T) {
	lost, kept := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("127.0.0.1")
	o := &ownAddresses{known: map[netip.Addr]bool{lost: true, kept: true}, read: time.Now().Add(time.Hour)}
	if own, sure := o.peek(lost); !own || !sure || !o.has(lost) {
		t.Errorf("cached address: own = %t, sure = %t; want true, true", own, sure)
	}
	o.read = time.Now().Add(-2 * time.Second)
	if _, sure := o.peek(lost); sure {
		t.Error("expired address: sure = true, want false")
	}
	if o.has(lost) {
		t.Errorf("has(%s) = true after it was removed, want false", lost)
	}
	if !o.has(kept) {
		t.Errorf("has(%s) = false, want true", kept)
	}
}
