package owner

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer/ownership"
)

// refusing is a kernel that has lost VIPs, and takes one of them no more.
type refusing struct {
	Kernel
	lost    []netip.Addr
	refuses netip.Addr
}

func (k *refusing) Lost() []netip.Addr { return k.lost }

func (k *refusing) Bind([]netip.Addr) map[netip.Addr]error {
	return map[netip.Addr]error{k.refuses: errors.New("IPv6 is disabled")}
}

// TestRestore: the event says of VIPs that are put back what was, and nothing of those that the kernel refuses, which are tried again.
func TestRestore(t *testing.T) {
	back, refused := netip.MustParseAddr("10.9.0.100"), netip.MustParseAddr("fd09::100")
	for _, lost := range [][]netip.Addr{{back, refused}, {refused}} {
		var notes []ownership.Action
		w := work{
			kernel: &refusing{lost: slices.Clone(lost), refuses: refused},
			tell:   func(f func(ownership.Time) []ownership.Action) { notes = append(notes, f(0)...) },
			failed: func(string, error) {},
		}
		w.opened.Store(true)
		w.restore()
		var want []ownership.Action
		if len(lost) == 2 {
			want = []ownership.Action{ownership.Note{Kind: ownership.NoteBack, Text: "put [10.9.0.100] back, which had gone from their interfaces", VIPs: 1}}
		}
		if fmt.Sprint(notes) != fmt.Sprint(want) {
			t.Errorf("of %v lost it says %v, want %v", lost, notes, want)
		}
		if again := w.absent.again(); !slices.Equal(again, []netip.Addr{refused}) {
			t.Errorf("%v are tried again, want %s", again, refused)
		}
	}
}
