package owners

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer/failover"
	"vipd/balancer/lib/wake"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Admin reads the owners of VIPs, and writes operators' requests to owners. Its methods are safe
// for concurrent use.
type Admin struct {
	client *client.Client
	keys   schema.Keys
}

// NewAdmin returns an admin.
func NewAdmin(c *client.Client) *Admin { return &Admin{c, c.Keys} }

// OwnedVIP is a VIP with hold = "one".
type OwnedVIP struct {
	Addr netip.Addr
	// Owner is the owner's record. Live reports whether the owner's session exists, so the owner
	// may answer for the VIP.
	Owner failover.Owner
	Live  bool
	// Jury lists the nodes that confirm the owner's session. The owner is one of them.
	Jury []string
	// Ready lists the nodes that could own the VIP, according to etcd's records. Not maps each of
	// the remaining nodes to the reason why it could not.
	Ready []string
	Not   map[string]string
	// Move is the requested move, or nil.
	Move *failover.Move
}

// records holds etcd's records for failover, by node or by address.
type records struct {
	revisions map[failover.Key]int64
	members   map[string]failover.Member
	sessions  map[string]failover.Session
	owners    map[netip.Addr]failover.Owner
	moves     map[netip.Addr]failover.Move
	fences    map[string]failover.Fence
}

// readOwnership reads all records at one revision. It does not read the heartbeat keys, because
// most users may not read them.
func (o *Admin) readOwnership(ctx context.Context) (*records, error) {
	request := &etcdserverpb.TxnRequest{}
	for _, kind := range []failover.RecordKind{failover.Nodes, failover.Sessions, failover.VIPs, failover.Moves, failover.Fences} {
		folder := o.keys.Ownership(failover.Key{Kind: kind})
		request.Success = append(request.Success, client.Read(&etcdserverpb.RangeRequest{Key: []byte(folder), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(folder))}))
	}
	answer, err := o.client.Transact(ctx, o.keys.Prefix+schema.OwnershipFolder, request)
	if err != nil {
		return nil, err
	}
	r := &records{map[failover.Key]int64{}, map[string]failover.Member{}, map[string]failover.Session{}, map[netip.Addr]failover.Owner{}, map[netip.Addr]failover.Move{}, map[string]failover.Fence{}}
	records := Ownership{keys: o.keys}
	for _, part := range answer.Responses {
		for _, kv := range part.GetResponseRange().Kvs {
			if c, ok := records.change(kv, false); ok {
				r.add(c)
			}
		}
	}
	return r, nil
}

func (r *records) add(c failover.RecordChange) {
	r.revisions[c.Key] = c.Revision
	switch c.Kind {
	case failover.Nodes:
		readRecord(r.members, c.Name, c.Text)
	case failover.Sessions:
		readRecord(r.sessions, c.Name, c.Text)
	case failover.VIPs:
		if a, err := netip.ParseAddr(c.Name); err == nil {
			readRecord(r.owners, a, c.Text)
		}
	case failover.Moves:
		if a, err := netip.ParseAddr(c.Name); err == nil {
			readRecord(r.moves, a, c.Text)
		}
	case failover.Fences:
		readRecord(r.fences, c.Name, c.Text)
	}
}

// readRecord adds a record, unless this version can't parse it.
func readRecord[K comparable, V any](to map[K]V, name K, text []byte) {
	var v V
	if json.Unmarshal(text, &v) == nil {
		to[name] = v
	}
}

// OwnedVIPs returns the VIPs that have or had an owner, and the wanted VIPs, in order. The result
// weights holds the registered nodes' weights.
func (o *Admin) OwnedVIPs(ctx context.Context, wanted ...netip.Addr) (all []OwnedVIP, weights map[string]int, err error) {
	r, err := o.readOwnership(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range wanted {
		if _, ok := r.owners[a]; !ok {
			r.owners[a] = failover.Owner{} // the VIP has never had an owner
		}
	}
	weights = map[string]int{}
	for name, m := range r.members {
		weights[name] = m.Weight
	}
	for a, owner := range r.owners {
		session, ok := r.sessions[owner.Node]
		v := OwnedVIP{Addr: a, Owner: owner, Live: ok && session.ID == owner.Session, Not: map[string]string{}}
		if v.Live {
			v.Jury = session.Jury
		}
		for name, m := range r.members {
			if why := r.blockReason(name, m, a, false); why != "" {
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

// blockReason returns the reason why a node can't own a VIP, according to etcd's records, or "". If
// force is set, it ignores reasons for which the node could own the VIP but not serve it.
func (r *records) blockReason(name string, m failover.Member, a netip.Addr, force bool) string {
	_, session := r.sessions[name]
	switch _, fenced := r.fences[name]; {
	case !session:
		return "it has no session"
	case fenced:
		return "it is fenced"
	case m.Standby:
		return "it is on standby"
	case !m.Reaches(a):
		return "none of its devices is in the VIP's network"
	}
	return m.Lacks(a, force)
}

// MoveVIP asks the owner of a VIP to move it to another node, or to the best node if to is "". It
// waits until the new owner announces the VIP, and returns the new owner. announced is false if the
// new owner's version does not report this, or if the VIP did not move. If the owner refuses,
// MoveVIP returns an error.
func (o *Admin) MoveVIP(ctx context.Context, a netip.Addr, m failover.Move) (to string, announced bool, err error) {
	r, err := o.readOwnership(ctx)
	if err != nil {
		return "", false, err
	}
	owner, ok := r.owners[a]
	if !ok {
		return "", false, fmt.Errorf("%s has no owner: \"vipctl get vips\" lists the VIPs with an owner", a)
	}
	member, registered := r.members[m.To]
	session, alive := r.sessions[owner.Node]
	switch {
	case m.To == owner.Node && alive && session.ID == owner.Session:
		return m.To, false, nil
	case m.To != "" && !registered:
		return owner.Node, false, fmt.Errorf("%s does not participate: its vipd owner is not registered in etcd; start it, or name another node", m.To)
	}
	if why := r.blockReason(m.To, member, a, m.Force); m.To != "" && why != "" {
		if r.blockReason(m.To, member, a, true) == "" {
			why += " (--force moves it anyway)"
		}
		return owner.Node, false, fmt.Errorf("%s can't own %s: %s", m.To, a, why)
	}
	withdraw, err := o.requestMove(ctx, a, m)
	if err != nil {
		return owner.Node, false, err
	}
	defer withdraw()
	return o.awaitMove(ctx, a, owner)
}

// awaitMove waits until another node than the former owner announces a VIP. It does not wait for
// the announcement if another host acquires the VIP for another reason than the move.
func (o *Admin) awaitMove(ctx context.Context, a netip.Addr, former failover.Owner) (to string, announced bool, _ error) {
	for {
		r, err := o.readOwnership(ctx)
		if err == nil {
			to = ""
			if next := r.owners[a]; next.Node != former.Node {
				to = next.Node
				member, registered := r.members[to]
				if announced = member.Announces(a, next.Generation); announced || registered && member.Announced == nil || !next.Requested() {
					return to, announced, nil
				}
			} else if r.moves[a].Until.IsZero() {
				return former.Node, false, fmt.Errorf("%s has refused to hand over %s: \"vipctl events\" there shows the reason", former.Node, a)
			}
		}
		switch {
		case ctx.Err() != nil && to != "":
			return to, false, fmt.Errorf("%s owns %s, but has not announced it in time: \"vipctl status\" there shows the reason", to, a)
		case ctx.Err() != nil:
			return former.Node, false, fmt.Errorf("%s has not answered in time: %s stays there; check whether its vipd owner runs", former.Node, a)
		case err != nil:
			return former.Node, false, err
		}
		wake.Sleep(ctx, movePause)
	}
}

// requestMove writes a request to the owner of a VIP, with a lease that expires at m.Until, so a
// killed requester does not cause a move later. The function withdraw removes the request.
func (o *Admin) requestMove(ctx context.Context, a netip.Addr, m failover.Move) (withdraw func(), err error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	key := o.keys.Ownership(failover.Key{Kind: failover.Moves, Name: a.String()})
	l, err := o.client.Granted(ctx, key, max(time.Until(m.Until), client.MinTTL))
	if err != nil {
		return nil, err
	}
	withdraw = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), client.MinTTL)
		defer cancel()
		_ = l.Revoke(ctx) // if this fails, the lease expires
	}
	if _, _, err := o.client.Commit(ctx, key, nil, []*etcdserverpb.RequestOp{l.Put(key, text)}); err != nil {
		withdraw()
		return nil, err
	}
	return withdraw, nil
}

// LastOwners returns the last owners of a VIP, the newest first, unless etcd has compacted them.
func (o *Admin) LastOwners(ctx context.Context, a netip.Addr, limit int) (all []failover.Owner, err error) {
	ask := &etcdserverpb.RangeRequest{Key: []byte(o.keys.Ownership(failover.Key{Kind: failover.VIPs, Name: a.String()}))}
	for len(all) < limit {
		answer, err := o.client.Get(ctx, ask)
		if client.Is(err, rpctypes.ErrCompacted) || err == nil && len(answer.Kvs) == 0 {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		kv := answer.Kvs[0]
		var owner failover.Owner
		if json.Unmarshal(kv.Value, &owner) == nil {
			all = append(all, owner)
		}
		if kv.Version == 1 {
			break // older records precede a deletion of the key
		}
		ask.Revision = kv.ModRevision - 1
	}
	return all, nil
}

// Unregistered returns the hosts that have a session but are not registered, because they do not
// follow etcd.
func (o *Admin) Unregistered(ctx context.Context) (nodes []string, err error) {
	r, err := o.readOwnership(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.sessions)) {
		if _, ok := r.members[name]; !ok {
			nodes = append(nodes, name)
		}
	}
	return nodes, nil
}

// Members returns the URLs of each member of etcd.
func (o *Admin) Members(ctx context.Context) (all [][]string, err error) {
	err = o.client.Do(ctx, "the list of members", o.client.Members.Do, func(ctx context.Context, m *client.Member) error {
		answer, err := m.Client.MemberList(ctx)
		if err != nil {
			return err
		}
		for _, each := range answer.Members {
			all = append(all, append(each.GetPeerURLs(), each.GetClientURLs()...))
		}
		return nil
	})
	return all, err
}

// movePause is the pause between checks of whether a VIP has moved.
const movePause = 20 * time.Millisecond

// FenceNode records that a node is off, so other nodes can own its VIPs without waiting for
// confirmed silence. It refuses if the node is registered. It also refuses if the node has neither
// a session nor a fence, because the name may be mistyped.
func (o *Admin) FenceNode(ctx context.Context, node string, f failover.Fence) error {
	if err := schema.CheckNode(node); err != nil {
		return err
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	r, err := o.readOwnership(ctx)
	if err != nil {
		return err
	}
	if r.revisions[failover.Key{Kind: failover.Sessions, Name: node}]+r.revisions[failover.Key{Kind: failover.Fences, Name: node}] == 0 {
		return fmt.Errorf("%s has no session in etcd, and no VIP waits for it: nodes with a session: %s", node,
			cmp.Or(strings.Join(slices.Sorted(maps.Keys(r.sessions)), ", "), "none"))
	}
	key := o.keys.Ownership(failover.Key{Kind: failover.Fences, Name: node})
	alive := o.keys.Ownership(failover.Key{Kind: failover.Nodes, Name: node})
	_, ok, err := o.client.Commit(ctx, key, []*etcdserverpb.Compare{client.Unchanged(alive, 0)}, []*etcdserverpb.RequestOp{client.Put(key, text, 0)})
	if err == nil && !ok {
		err = fmt.Errorf("%s was registered in etcd less than 15 s ago: if it is off, try again in 15 s; otherwise, use \"vipctl node standby %s\"", node, node)
	}
	return err
}
