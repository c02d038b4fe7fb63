package direct

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// Render returns the frontends' table as input for "nft -f -", based on this host's devices and
// routes. It returns "" if no frontend has forward = "dr". It needs no privileges.
func Render(frontends []*balancer.Frontend) (string, error) {
	t := &Table{
		families: []*family{newFamily(nft.IPv4, "4"), newFamily(nft.IPv6, "6")},
		fronts:   map[balancer.Key]*front{}, datagrams: map[netip.Addr]map[balancer.Key]*front{},
	}
	touched, now := map[netip.Addr]bool{}, time.Now()
	for _, f := range frontends {
		next := newFront(f, nil, now)
		if next != nil {
			t.fronts[f.Key] = next
		}
		if f.Proto == balancer.UDP {
			t.noteDatagrams(dataplane.Change{Key: f.Key, New: f}, next)
			touched[f.Addr] = true
		}
	}
	if len(t.fronts) == 0 {
		return "", nil
	}
	t.changeFragments(touched, t.fronts)
	maps.DeleteFunc(t.fronts, func(_ balancer.Key, f *front) bool { return f == nil })
	endpoints, needed := partsOf(t.fronts)
	nl, err := netlink.NewHandle()
	if err != nil {
		return "", err
	}
	defer nl.Close()
	l, err := retryInterrupted(func() (layout, error) { return layoutOf(nl, endpoints, nil) })
	if err != nil {
		return "", err
	}
	return t.text(l, needed), nil
}

// text returns the table with these chains. A comment describes each frontend, because nobody reads
// a thousand slots.
func (t *Table) text(l layout, needed []chain) string {
	var tx nft.Tx
	x := nft.Table{Family: nft.Netdev, Name: tableName}
	tx.AddTable(x)
	addChains(&tx, x, t.families, l, needed)
	comments := ""
	for _, k := range slices.SortedFunc(maps.Keys(t.fronts), balancer.Key.Compare) {
		f, y := t.fronts[k], t.family(k)
		if f.frontend != nil {
			comments += fmt.Sprintf("# %s: %s\n", k, f.summary(l))
		}
		for _, s := range y.sets() {
			var elems []nft.Elem
			for at, v := range y.elems(k, f, l.via) {
				if at.set == s {
					elems = append(elems, at.elem(v))
				}
			}
			slices.SortFunc(elems, func(a, b nft.Elem) int { return slices.Compare(a.Key, b.Key) })
			tx.Create(x, s, elems...)
		}
	}
	return comments + readable(tx.Text())
}

// readable turns rules that the kernel accepts but nft 1.0.6 can't read into comments. nft refuses
// raw packet data as keys for these maps, and crashes on long keys.
func readable(commands string) string {
	var b strings.Builder
	for line := range strings.Lines(commands) {
		if strings.HasPrefix(line, "add rule") && (strings.Contains(line, ". @th") || strings.Contains(line, "fwd ip6 to")) {
			b.WriteString("# written with netlink, because nft can't read it: ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// summary describes each endpoint's slots.
func (f *front) summary(l layout) string {
	var parts []string
	for _, a := range slices.SortedFunc(slices.Values(f.endpoints), netip.Addr.Compare) {
		n := 0
		for _, in := range f.slots {
			if in == a {
				n++
			}
		}
		way := "use nat, because it is not a neighbor of this host"
		if device := l.deviceTo(a); device != "" {
			way = "through " + device
		}
		parts = append(parts, fmt.Sprintf("%d slots of %s %s", n, a, way))
	}
	return strings.Join(parts, ", ")
}
