package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer/ownership"
)

// OwnedVIP is a VIP of which one host is the owner (hold = "one").
type OwnedVIP struct {
	Addr netip.Addr
	// Owner is what etcd says of it. Live: its session is there, so that it may answer.
	Owner ownership.Owner
	Live  bool
	// Jury are the nodes that confirm the owner's session, itself among them.
	Jury []string
	// Ready are the nodes that could take it, as far as etcd tells, and Not the others with the reason of each.
	Ready []string
	Not   map[string]string
	// Move is what is asked for; nil means nothing.
	Move *ownership.Move
}

// records are those of who owns which VIP.
type records struct {
	revisions map[ownership.Key]int64
	members   map[string]ownership.Member
	sessions  map[string]ownership.Session
	owners    map[netip.Addr]ownership.Owner
	moves     map[netip.Addr]ownership.Move
}

func (w *Writer) readOwnership(ctx context.Context) (*records, error) {
	folder := w.keys.prefix + ownershipFolder
	answer, err := w.get(ctx, &etcdserverpb.RangeRequest{Key: []byte(folder), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(folder))})
	if err != nil {
		return nil, err
	}
	r := &records{map[ownership.Key]int64{}, map[string]ownership.Member{}, map[string]ownership.Session{}, map[netip.Addr]ownership.Owner{}, map[netip.Addr]ownership.Move{}}
	o := Ownership{keys: w.keys, Secrets: func([][]byte) {}}
	for _, kv := range answer.Kvs {
		c, ok := o.change(kv, false)
		if !ok {
			continue
		}
		r.revisions[c.Key] = c.Revision
		switch c.Kind {
		case ownership.Nodes:
			readRecord(r.members, c.Name, c.Text)
		case ownership.Sessions:
			readRecord(r.sessions, c.Name, c.Text)
		case ownership.VIPs:
			if a, err := netip.ParseAddr(c.Name); err == nil {
				readRecord(r.owners, a, c.Text)
			}
		case ownership.Moves:
			if a, err := netip.ParseAddr(c.Name); err == nil {
				readRecord(r.moves, a, c.Text)
			}
		}
	}
	return r, nil
}

// readRecord adds a record, unless a newer version has written what this one can't read.
func readRecord[K comparable, V any](to map[K]V, name K, text []byte) {
	var v V
	if json.Unmarshal(text, &v) == nil {
		to[name] = v
	}
}

// OwnedVIPs returns the VIPs that have or had an owner, and those that are to have one, in order. Weights are those of the nodes
// that take part.
func (w *Writer) OwnedVIPs(ctx context.Context, wanted ...netip.Addr) (all []OwnedVIP, weights map[string]int, err error) {
	r, err := w.readOwnership(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range wanted {
		if _, there := r.owners[a]; !there {
			r.owners[a] = ownership.Owner{} // nobody has owned it yet
		}
	}
	weights = map[string]int{}
	for name, m := range r.members {
		weights[name] = m.Weight
	}
	for a, owner := range r.owners {
		session, there := r.sessions[owner.Node]
		v := OwnedVIP{Addr: a, Owner: owner, Live: there && session.ID == owner.Session, Not: map[string]string{}}
		if v.Live {
			v.Jury = session.Jury
		}
		for name, m := range r.members {
			if why := r.cannot(name, m, a); why != "" {
				v.Not[name] = why
			} else {
				v.Ready = append(v.Ready, name)
			}
		}
		slices.Sort(v.Ready)
		if m, ok := r.moves[a]; ok {
			v.Move = &m
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b OwnedVIP) int { return a.Addr.Compare(b.Addr) })
	return all, weights, nil
}

// cannot says why a node can't take a VIP, as far as etcd tells; "" means it can.
func (r *records) cannot(name string, m ownership.Member, a netip.Addr) string {
	switch _, session := r.sessions[name]; {
	case !session:
		return "it has no session"
	case m.Standby:
		return "it is on standby"
	case m.Cannot[a] != "":
		return m.Cannot[a]
	case !m.Reaches(a):
		return "none of its devices has a network with it"
	}
	return ""
}

// MoveVIP asks the owner of a VIP to give it to another node; "" means to the best one. It returns who owns it when the owner has
// done so or refused, and an error that says which.
func (w *Writer) MoveVIP(ctx context.Context, a netip.Addr, m ownership.Move) (to string, err error) {
	r, err := w.readOwnership(ctx)
	if err != nil {
		return "", err
	}
	owner, ok := r.owners[a]
	if !ok {
		return "", fmt.Errorf("%s has no owner: \"vipctl get vips\" lists those that have", a)
	}
	member, there := r.members[m.To]
	switch {
	case m.To == owner.Node:
		return m.To, nil
	case m.To != "" && !there:
		return owner.Node, fmt.Errorf("%s does not take part: its vipd owner is not registered in etcd", m.To)
	case m.To != "" && !m.Force && r.cannot(m.To, member, a) != "":
		return owner.Node, fmt.Errorf("%s can't take %s: %s (--force moves it all the same)", m.To, a, r.cannot(m.To, member, a))
	}
	text, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	key := w.keys.Ownership(ownership.Key{Kind: ownership.Moves, Name: a.String()})
	if _, _, err := w.commit(ctx, key, nil, []*etcdserverpb.RequestOp{put(key, text, 0)}); err != nil {
		return owner.Node, err
	}
	for {
		if r, err = w.readOwnership(ctx); err != nil {
			return owner.Node, err
		}
		now := r.owners[a]
		_, asked := r.moves[a]
		switch {
		case now.Node != owner.Node:
			return now.Node, nil
		case !asked:
			return now.Node, fmt.Errorf("%s has refused to give %s away: \"vipctl events\" there says why", now.Node, a)
		}
		if sleep(ctx, movePause); ctx.Err() != nil {
			_, _, _ = w.commit(context.WithoutCancel(ctx), key, nil, []*etcdserverpb.RequestOp{remove(key)}) // lest it moves later
			return now.Node, fmt.Errorf("%s has not answered in time: %s stays there", now.Node, a)
		}
	}
}

// movePause is the time between two looks whether a VIP has moved.
const movePause = 20 * time.Millisecond

// FenceNode states that a node is off, so that others take its VIPs without having its silence confirmed. It refuses to while
// the node is registered.
func (w *Writer) FenceNode(ctx context.Context, node string, f ownership.Fence) error {
	if err := CheckNode(node); err != nil {
		return err
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	key := w.keys.Ownership(ownership.Key{Kind: ownership.Fences, Name: node})
	alive := w.keys.Ownership(ownership.Key{Kind: ownership.Nodes, Name: node})
	_, ok, err := w.commit(ctx, key, []*etcdserverpb.Compare{unchanged(alive, 0)}, []*etcdserverpb.RequestOp{put(key, text, 0)})
	if err == nil && !ok {
		err = fmt.Errorf("%s is registered in etcd, or was until 15 s ago, so it is not off: use \"vipctl node standby %s\"", node, node)
	}
	return err
}
