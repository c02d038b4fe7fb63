package owner

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/failover/local"
	"vipd/cmd/internal/api"
	onhost "vipd/dataplane/failover"
	"vipd/dataplane/failover/heartbeat"
	"vipd/store/etcd/owners"
)

// byEtcd is the decider that holds a session in etcd. Other hosts confirm the session by answering
// heartbeats.
type byEtcd struct {
	*failover.Node
	core   *core
	link   *heartbeat.Link
	store  *owners.Ownership
	state  etcdState
	writes sync.WaitGroup
	member atomic.Pointer[failover.Member]
}

// Next returns 0, because with etcd every tick is early enough.
func (d *byEtcd) Next() local.Time { return 0 }

// newID returns an unused ID.
func newID() failover.ID {
	var b [8]byte
	_, _ = rand.Read(b[:]) // Read never fails
	return failover.ID(binary.BigEndian.Uint64(b[:]) | 1)
}

// newByEtcd returns a decider for a core whose gate is closed.
func newByEtcd(c *core, doubt time.Duration) (d *byEtcd, err error) {
	d = &byEtcd{core: c, state: etcdState{log: c.o.Log}}
	m := failover.Member{Boot: newID(), At: c.layout.At, Weight: c.o.Weight, Zone: c.o.Zone, Version: c.o.Version, Announced: []failover.Announcement{}}
	if m.Machine, err = machine(); err != nil {
		return nil, err
	}
	d.member.Store(&m)
	d.Node = failover.New(failover.Options{
		Name: c.o.Node, Member: m, Timing: c.o.Timing, Started: now(), Doubt: doubt, NewID: newID, Wall: func() time.Time { return time.Now().UTC().Truncate(time.Millisecond) },
	})
	if d.link, err = heartbeat.Listen(m.At); err != nil {
		return nil, err
	}
	if d.store, err = owners.NewOwnership(c.o.Etcd, c.o.Node); err != nil {
		return nil, err
	}
	d.store.Member = func() failover.Member { return *d.member.Load() }
	d.store.Secrets = d.link.SetKeys
	d.store.Standby = d.standby
	d.store.Report = d.reported
	d.store.OnRecords = func(changes []failover.RecordChange, revision int64, all bool) {
		c.queueInput(func(now local.Time) []local.Action { return d.Stored(now, changes, revision, all) })
	}
	return d, nil
}

// reported handles the result of a request to etcd. err is nil if etcd was reached.
func (d *byEtcd) reported(err error) {
	if err != nil {
		d.core.queueInput(d.LostEtcd)
	}
	d.state.reported(err)
}

// change applies f to this node's record, and passes the result to the store and to the protocol.
func (d *byEtcd) change(f func(*failover.Member)) {
	for {
		before := d.member.Load()
		m := *before
		if f(&m); d.member.CompareAndSwap(before, &m) {
			break
		}
	}
	d.store.MemberChanged()
	d.core.queueInput(func(now local.Time) []local.Action { return d.SetMember(now, *d.member.Load()) })
}

func (d *byEtcd) standby(on bool, by failover.Request) {
	if d.member.Load().Standby != on {
		d.change(func(m *failover.Member) { m.Standby, m.StandbyBy = on, by })
	}
}

func (d *byEtcd) can(cannot map[netip.Addr]string, absent []netip.Addr) {
	d.change(func(m *failover.Member) { m.Cannot, m.Absent = cannot, absent })
}

// Bound publishes that this host announces VIPs that an operator has moved to it, because the
// operator's command waits for that.
func (d *byEtcd) Bound(_ local.Time, vips []netip.Addr) []local.Action {
	member := d.member.Load()
	moved := slices.DeleteFunc(d.Moved(vips), func(a failover.Announcement) bool { return member.Announces(a.VIP, a.Generation) })
	if len(moved) > 0 {
		d.writes.Go(func() { d.change(func(m *failover.Member) { m.Announce(moved) }) })
	}
	return nil
}

func (d *byEtcd) run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { d.link.Run(ctx, d.received) })
	parts.Go(func() {
		if err := d.store.Run(ctx); err != nil {
			d.core.journal.note(local.Note{Kind: local.NoteLost, Text: "gave up all VIPs, and will acquire them again: " + err.Error()})
			close(d.core.another)
		}
	})
	parts.Wait()
	d.writes.Wait()
}

func (d *byEtcd) received(on int, m failover.Message) {
	d.core.queueInput(func(now local.Time) []local.Action { return d.Received(now, on, m) })
}

// Do performs an action that the protocol requests.
func (d *byEtcd) Do(ctx context.Context, a local.Action) input {
	switch a := a.(type) {
	case failover.Send:
		d.link.Send(a.Message, a.On, d.Addresses(a.To))
	case failover.Write:
		d.writes.Go(func() {
			outcome, revision, err := d.store.Write(ctx, a)
			d.state.wrote(outcome, err)
			d.core.queueInput(func(now local.Time) []local.Action { return d.Wrote(now, a.ID, outcome, revision) })
		})
	case failover.Register:
		d.writes.Go(func() { d.change(func(m *failover.Member) { m.Boot = a.Boot }) })
	}
	return nil
}

func (d *byEtcd) listen(before, after onhost.Layout) error {
	if reflect.DeepEqual(before.At, after.At) && slices.Equal(before.On, after.On) {
		return nil
	}
	done := make(chan error, 1)
	d.core.queueInput(func(local.Time) []local.Action {
		d.core.layout.On = after.On
		done <- d.link.Change(after.At)
		return nil
	})
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-d.core.ended:
	}
	d.change(func(m *failover.Member) { m.At = after.At })
	return nil
}

// SetReport passes the policies of the reported VIPs to the node.
func (d *byEtcd) SetReport(now local.Time, report *api.OwnerReport, _ onhost.Layout) []local.Action {
	policies := map[netip.Addr]failover.Policy{}
	for a, v := range report.VIPs {
		policies[a] = failover.Policy{Prefer: v.Prefer, Preempt: v.Preempt, Group: v.Group}
	}
	return d.SetPolicies(now, policies)
}

func (d *byEtcd) describe(s *api.OwnerStatus) {
	got := make(chan failover.Status, 1)
	d.core.queueInput(func(now local.Time) []local.Action {
		n := d.Status(now)
		s.Peers, s.Unplaced = d.peers(n.Heard), d.core.layout.Unplaced()
		got <- n
		return nil
	})
	select {
	case n := <-got:
		if n.Session != 0 {
			s.Session = n.Session.String()
		}
		if n.Obstructed {
			s.Problems = append(s.Problems, obstructed(d.core.o.Node))
		}
		s.Unowned, s.Waiting = n.Free, n.Waiting
		for _, a := range slices.SortedFunc(maps.Keys(n.Strangers), netip.Addr.Compare) {
			s.Problems = append(s.Problems, fmt.Sprintf("%s is not owned here, because a host outside the fleet has it: %s", a, n.Strangers[a]))
		}
		s.Gate = n.Gate
		s.Left = n.Left.Seconds()
		s.Bound = n.Bound
		s.Confirmed = map[string]float64{}
		for node, age := range n.Confirmed {
			s.Confirmed[node] = max(age.Seconds(), -1)
		}
	case <-d.core.ended:
	}
	d.state.describe(s)
	s.Foreign = d.link.Foreign()
	if d.link.SawForeign() {
		s.Problems = append(s.Problems, "heartbeats with another key are ignored: another fleet uses this fleet's addresses, or a host does not follow etcd")
	}
}

// obstructed returns the problem and the remedy if another machine has a session with this node's
// name.
func obstructed(node string) string {
	return fmt.Sprintf("this host can't own VIPs, because etcd has a session of another machine named %[1]s. If that machine runs, rename either "+
		"machine. If it is off, stop vipd owner here for 15 s, use \"vipctl node fence %[1]s --is-off\", and start vipd owner", node)
}

// peers returns the other nodes, once for each network that this host shares with them.
func (d *byEtcd) peers(heard map[string][]bool) (all []api.OwnerPeer) {
	for _, node := range slices.Sorted(maps.Keys(heard)) {
		for i, up := range heard[node] {
			if to := d.link.Reach(i, d.Addresses(node)); len(to) > 0 {
				all = append(all, api.OwnerPeer{Node: node, Network: d.link.Network(i), Addresses: to, Up: up})
			}
		}
	}
	return all
}
