package ownership

import (
	"fmt"
	"strings"
	"time"
)

// takeFree takes VIPs that no live session owns: the best node at once, the others after it has had the time.
func (n *Node) takeFree() {
	if n.taking || n.stopping || len(n.free) == 0 || n.gate != open || !n.passes() || n.now.Since(n.o.Started) < n.o.Timing.Silence {
		return // a node that has just started has not heard yet who else there is
	}
	n.stale = true // ranking counts
	var units []*unit
	for _, name := range n.free {
		u := n.units[name]
		if r := n.rank(u); r >= 0 && n.now >= u.since.Add(time.Duration(r)*rankDelay) {
			units = append(units, u)
		}
		if len(units) == mostTaken {
			break
		}
	}
	if len(units) > 0 {
		n.take(Write{}, units, "nobody", "free")
	}
}

// take writes that this session owns units, on the condition that nobody has changed their owner and that it is live.
func (n *Node) take(w Write, units []*unit, from, why string) {
	n.taking = true
	if len(units) > 0 {
		w.If = append(w.If, n.ifMine().If...)
	}
	var names []string
	vips := 0
	for _, u := range units {
		owner := Owner{Node: n.o.Name, Session: n.my.id, Why: why, Generation: 1, Since: n.o.Wall()}
		if old := n.owners[u.name]; old != nil {
			owner.Generation = old.value.Generation + 1
		}
		w.If = append(w.If, Condition{Key{VIPs, u.name}, n.owners.at(u.name)})
		w.Put = append(w.Put, Put{Key{VIPs, u.name}, text(owner)})
		names = append(names, u.name)
		vips += len(u.addrs)
	}
	id := n.my.id
	n.write(w, func(o Outcome, revision int64) {
		if n.my.id == id {
			n.taking = false
		}
		if o != Done {
			return // what was carried out all the same is heard of from etcd
		}
		n.wrote(&w, revision)
		if vips > 0 {
			n.do(Note{Kind: NoteTook, Text: fmt.Sprintf("took %s from %s", some(names), from), VIPs: vips, Why: why})
		}
	})
}

// some names the first few.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
