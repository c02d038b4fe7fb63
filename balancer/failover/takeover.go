package failover

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer/failover/local"
)

// takeover claims VIPs that no live session owns, and revokes silent sessions.
type takeover struct {
	*parts
	// free lists the VIPs that no live session owns.
	free []*vip
	// probing reports whether a Probe is pending.
	probing bool
}

// count finds the free VIPs, and counts the VIPs that each node owns.
func (t *takeover) count() {
	counted := map[string]int{}
	t.ranking.counted, t.free = counted, t.free[:0]
	for _, v := range t.vips.order {
		o := t.etcd.owners[v.name]
		if o != nil && (o.unreadable || t.etcd.alive(o.value)) {
			counted[o.value.Node]++
			v.since = 0
			continue
		}
		v.fresh = o == nil
		t.free = append(t.free, v)
	}
}

// maxClaimed is the maximum number of VIPs in one transaction. By default, etcd accepts up to 128
// operations and 128 conditions.
const maxClaimed = 100

// claimFree claims free VIPs. The best node claims immediately, and each other node waits until all
// better nodes have had time to claim.
func (t *takeover) claimFree() {
	if t.writer.claiming || t.gate.stopping || len(t.free) == 0 || !t.gate.passes() || t.now.Since(t.o.Started) < t.o.Timing.Silence {
		return // a node that has just started has not yet received the live nodes' heartbeats
	}
	c := t.due()
	if len(c.unknown) > 0 && !t.probing {
		t.probing = true
		t.do(local.Probe{Addrs: c.unknown})
	}
	if len(c.vips) > 0 {
		t.claim(Write{}, c.vips, "", "free", firstFree(c.vips))
	}
}

// due returns the free VIPs that this node may claim now.
func (t *takeover) due() claims {
	before := maps.Clone(t.ranking.counted)
	defer func() { t.ranking.counted = before }() // because ranking.rank changes the counts
	var best, late claims
	seen, ranked := ranks{}, 0
	for _, v := range t.free {
		unknown := (v.fresh || t.doubts()) && !v.clear
		if t.now < v.askAgain || unknown && t.probing {
			continue
		}
		v.stranger = ""
		r := t.ranking.rank(v, seen)
		switch {
		case r < 0:
			v.askAgain = t.now.Add(cannotRest)
			continue
		case v.since == 0:
			v.since = t.now
		}
		if r == 0 {
			best.add(v, unknown)
		} else if t.now >= v.since.Add(time.Duration(r)*rankDelay) {
			late.add(v, unknown)
		}
		if ranked++; ranked == maxClaimed*len(t.etcd.members) || best.full() {
			break // all nodes start with the same VIPs and divide them
		}
	}
	if best.empty() {
		return late
	}
	return best
}

// firstFree returns when the first of the VIPs became free, or 0 if none of them ever had an owner.
func firstFree(all []*vip) (since local.Time) {
	for _, v := range all {
		if !v.fresh && (since == 0 || v.since < since) {
			since = v.since
		}
	}
	return since
}

// cannotRest is how long this node ignores a free VIP that it can't hold.
const cannotRest = 200 * time.Millisecond

// claims holds the VIPs that this node may claim. It sends probes for the VIPs in unknown before it
// claims them, because another host may have them.
type claims struct {
	vips    []*vip
	unknown []netip.Addr
}

func (c *claims) add(v *vip, unknown bool) {
	if unknown {
		c.unknown = append(c.unknown, v.addr)
	} else {
		c.vips = append(c.vips, v)
	}
}

func (c *claims) full() bool  { return len(c.vips) == maxClaimed || len(c.unknown) == maxClaimed }
func (c *claims) empty() bool { return len(c.vips)+len(c.unknown) == 0 }

// strangerRest is how long to wait before the next probe for a VIP if a host outside the fleet has
// answered for it.
const strangerRest = 10 * time.Second

// probed processes the answers to a Probe. The map found contains the MAC of the host that answered
// for each address, if any.
func (t *takeover) probed(addrs []netip.Addr, found map[netip.Addr]string) {
	t.probing = false
	for _, a := range addrs {
		v := t.vips.byName[a.String()]
		if v == nil {
			continue
		}
		if o := t.etcd.owners[v.name]; o != nil && t.etcd.alive(o.value) {
			continue // its owner answered
		}
		mac := found[a]
		if mac == "" {
			v.clear = true
			continue
		}
		if t.etcd.whose(mac) != "" {
			continue // a node in the fleet has just claimed the VIP, and etcd will report the claim
		}
		v.stranger, v.askAgain = mac, t.now.Add(strangerRest)
		t.do(local.Note{Kind: local.NoteRival, VIPs: 1, Text: fmt.Sprintf("did not take %s: a host outside the fleet has it, %s", a, mac)})
	}
	t.stale = true
}

// claim writes this session to etcd as the owner of VIPs. The write fails if an owner has changed
// or the session is not live. The parameter from describes the previous owner, and since is the
// owner's last sign of life, or 0 if the VIPs never had an owner.
func (t *takeover) claim(w Write, all []*vip, from, why string, since local.Time) {
	t.writer.claiming = true
	if len(all) > 0 {
		w.If = append(w.If, t.session.ifMine().If...)
	}
	var names []string
	for _, v := range all {
		owner := Owner{Node: t.o.Name, Session: t.session.id, Why: why, Generation: 1, Since: t.o.Wall()}
		if old := t.etcd.owners[v.name]; old != nil {
			owner.Generation = old.value.Generation + 1
		}
		w.If = append(w.If, Condition{Key{VIPs, v.name}, t.etcd.owners.at(v.name)})
		w.Put = append(w.Put, Put{Key{VIPs, v.name}, encode(owner)})
		names = append(names, v.name)
	}
	id := t.session.id
	t.writer.write(w, func(o Outcome, revision int64) {
		if t.session.id == id {
			t.writer.claiming = false
		}
		if o != Done {
			return // if etcd has executed the write anyway, its watch will report the change
		}
		t.writer.apply(&w, revision)
		if len(names) > 0 {
			t.do(tookNote(names, from, why, since, t.now))
		}
	})
}

func tookNote(names []string, from, why string, since, now local.Time) local.Note {
	whose := " from " + from
	if from == "" {
		whose = ", which had no owner"
	}
	note := local.Note{Kind: local.NoteTook, Text: "took " + listFirst(names) + whose, VIPs: len(names), Why: why}
	if since > 0 {
		note.After = now.Since(since)
	}
	return note
}

func listFirst(names []string) string {
	const listed = 3
	if len(names) > listed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:listed], ", "), len(names)-listed)
	}
	return strings.Join(names, ", ")
}

// strangers returns the value of Status.Strangers.
func (t *takeover) strangers() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, v := range t.vips.order {
		if v.stranger != "" && t.etcd.owners[v.name] == nil {
			all[v.addr] = v.stranger
		}
	}
	return all
}

// waiting returns the silent nodes whose sessions may not be revoked, and maps each of them to the
// silent members of its jury. The result resting lists their VIPs, which nobody serves until an
// operator declares that the nodes are off. If this node's own session is not confirmed, waiting
// returns nothing, because this node may be cut off.
func (t *takeover) waiting() (nodes map[string][]string, resting []netip.Addr) {
	nodes = map[string][]string{}
	if !t.session.passes() {
		return nodes, nil
	}
	for node, s := range t.etcd.sessions {
		if node == t.o.Name || s.unreadable {
			continue
		}
		if _, silent := t.jurors.silent(node, s); !silent {
			continue
		}
		silent, heard := []string{node}, 0
		for _, name := range s.value.Jury {
			switch {
			case name == node:
			case name == t.o.Name, t.peers.hasHeartbeat(name):
				heard++
			default:
				silent = append(silent, name)
			}
		}
		owned := t.ownedBy(node, s.value.ID)
		if heard >= Revoking(len(s.value.Jury)) || len(owned) == 0 {
			continue
		}
		slices.Sort(silent)
		nodes[node] = silent
		for _, v := range owned {
			resting = append(resting, v.addr)
		}
	}
	return nodes, resting
}
