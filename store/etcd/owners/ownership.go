package owners

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"vipd/balancer/failover"
	"vipd/balancer/lib/wake"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// These are Ownership's durations. Requests have a short timeout, because etcd drops them while it
// has no leader, and they must be repeated.
const (
	ownershipCall    = 400 * time.Millisecond
	ownershipLoad    = 5 * time.Second
	ownershipTTL     = 15 * time.Second
	ownershipProbe   = time.Second
	ownershipSilence = 3 * time.Second
)

// Ownership is a host's part in failover. It registers the host with a lease, follows all records,
// and writes records.
type Ownership struct {
	keys schema.Keys
	node string
	// Member returns the record to register. After the registration, OnRecords receives all
	// records, and then changes in order. Secrets receives the heartbeat keys, the newest first.
	// Report receives the connection's error, or nil.
	Member    func() failover.Member
	OnRecords func(changes []failover.RecordChange, revision int64, all bool)
	Secrets   func([][]byte)
	// Standby receives whether the node is on standby, and the request that caused it.
	Standby func(on bool, by failover.Request)
	Report  func(error)
	// WriteLimit is the timeout of a write.
	WriteLimit time.Duration

	client *client.Client
	// watchMembers are the members for watches. They are separate, so a write that moves to another
	// member does not end watches.
	watchMembers *client.Members
	// ready is set while etcd is known to have the same history as before, so writes are permitted.
	ready atomic.Bool
	wake  wake.Signal

	// The fields below belong to Run. proxied reports whether etcd is reached through a proxy,
	// which does not report progress.
	history client.History
	seen    seen
	proxied bool
}

// NewOwnership returns an Ownership that does nothing until Run is called. It returns an error if
// the configuration is invalid.
func NewOwnership(c client.Config, node string) (*Ownership, error) {
	etcd, err := client.NewClient(c)
	if err = errors.Join(err, schema.CheckNode(node)); err != nil {
		return nil, err
	}
	return &Ownership{keys: etcd.Keys, node: node, WriteLimit: ownershipCall, client: etcd, watchMembers: client.NewMembers(c, etcd.Keys), wake: wake.New()}, nil
}

// MemberChanged makes Run write the member's record again.
func (o *Ownership) MemberChanged() { o.wake.Send() }

// Run registers this node under a lease, and follows the ownership records until ctx ends. Then it
// revokes the lease. It retries after failures. It returns client.ErrAnother as soon as etcd has
// another history. In this case, the host must behave as it would after a start.
func (o *Ownership) Run(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; failures++ {
		began := time.Now()
		err := o.attempt(ctx)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, client.ErrHistoryChanged) {
			return err
		}
		o.Report(o.denied(err))
		if time.Since(began) > 10*time.Second {
			failures = 0
		}
		wake.Sleep(ctx, min(50*time.Millisecond<<min(failures, 5), time.Second))
	}
	return nil
}

// denied makes an error from etcd readable.
func (o *Ownership) denied(err error) error {
	return o.client.Config.Denied(client.Plain(client.Unwrapped(err)), "read and write", o.keys.Prefix+schema.OwnershipFolder)
}

func (o *Ownership) attempt(run context.Context) error {
	m, err := o.reach(run)
	if err != nil {
		return err
	}
	defer func() { o.watchMembers.Close(); _ = o.client.Close() }() // Close never returns an error
	ctx, cancel := context.WithCancelCause(run)
	defer cancel(nil)
	defer o.ready.Store(false)
	lease, err := o.register(ctx)
	if err != nil {
		return err
	}
	defer func() { // otherwise the node would remain in juries until the lease expires
		bounded, cancel := context.WithTimeout(context.WithoutCancel(run), ownershipCall)
		defer cancel()
		if run.Err() != nil {
			_ = lease.Revoke(bounded)
		}
	}()
	go func() { // otherwise the client would continue with another server at this address, which may be another etcd
		if m.Conn().WaitForStateChange(ctx, connectivity.Ready) {
			cancel(errors.New("the connection was lost"))
		}
	}()
	revision, err := o.load(ctx, m)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	if !o.proxied {
		o.Report(nil)
	}
	err = o.follow(ctx, m, lease, revision)
	return cmp.Or(context.Cause(ctx), err) // read after follow, because the cause is set while follow runs
}

// reach returns a member that has not lost the other members.
func (o *Ownership) reach(ctx context.Context) (*client.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, ownershipLoad)
	defer cancel()
	return o.watchMembers.Reach(ctx, nil)
}

// register writes nodes/NODE under a lease.
func (o *Ownership) register(ctx context.Context) (*client.Lease, error) {
	l, err := o.client.Granted(ctx, o.keys.Ownership(failover.Key{Kind: failover.Nodes, Name: o.node}), ownershipTTL)
	if err == nil {
		err = o.putMember(ctx, l)
	}
	return l, err
}

// putMember writes nodes/NODE, unless the key has changed since it was read, because a late write
// must not restore an earlier run's record.
func (o *Ownership) putMember(ctx context.Context, l *client.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, ownershipLoad)
	defer cancel()
	before, err := o.client.Get(ctx, &etcdserverpb.RangeRequest{Key: []byte(l.Key), KeysOnly: true})
	if err != nil {
		return err
	}
	text, err := json.Marshal(o.Member())
	if err != nil {
		return err
	}
	was := int64(0)
	if len(before.Kvs) > 0 {
		was = before.Kvs[0].ModRevision
	}
	_, ok, err := o.client.Commit(ctx, l.Key, []*etcdserverpb.Compare{client.Unchanged(l.Key, was)}, []*etcdserverpb.RequestOp{l.Put(l.Key, text)})
	if err == nil && !ok {
		err = errors.New(l.Key + " has changed in the meantime")
	}
	return err
}

// load reads everything with a linearizable read. If the key with the heartbeat keys does not
// exist, load creates it.
func (o *Ownership) load(ctx context.Context, m *client.Member) (int64, error) {
	conn := m.Client
	ctx, cancel := context.WithTimeout(ctx, ownershipLoad)
	defer cancel()
	secret := o.keys.Secrets()
	fresh, err := json.Marshal(secrets{Key: newSecret()})
	if err != nil {
		return 0, err
	}
	if _, err := conn.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(secret), "=", 0)).
		Then(clientv3.OpPut(secret, string(fresh))).Commit(); err != nil {
		return 0, err
	}
	both, err := conn.Txn(ctx).Then(clientv3.OpGet(o.keys.Prefix+schema.OwnershipFolder, clientv3.WithPrefix()),
		clientv3.OpGet(o.keys.NodeConfig(o.node))).Commit()
	if err != nil {
		if _, own := conn.Get(ctx, o.keys.NodeConfig(o.node)); client.Forbidden(own) {
			return 0, fmt.Errorf("%s may not read %s: give its role that permission", o.client.Config.Who(), o.keys.NodeConfig(o.node))
		}
		return 0, err
	}
	records, config := both.Responses[0].GetResponseRange().Kvs, both.Responses[1].GetResponseRange().Kvs
	if err := o.verify(ctx, m); err != nil {
		return 0, err
	}
	if o.seen.disagrees(records) {
		return 0, client.ErrHistoryChanged
	}
	o.seen.read(records, both.Header.Revision)
	o.history = client.History{Cluster: both.Header.ClusterId, Revision: both.Header.Revision}
	for _, kv := range records {
		o.history.Note(kv)
	}
	o.ready.Store(true)
	var changes []failover.RecordChange
	for _, kv := range records {
		if c, ok := o.change(kv, false); ok {
			changes = append(changes, c)
		}
	}
	o.configured(append(config, nil)[0])
	o.OnRecords(changes, both.Header.Revision, true)
	return both.Header.Revision, nil
}

// verify returns client.ErrAnother if etcd has another history than before.
func (o *Ownership) verify(ctx context.Context, m *client.Member) error {
	_, err := o.history.Verify(ctx, o.keys.NodeConfig(o.node), func(ctx context.Context, r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
		return etcdserverpb.NewKVClient(m.Conn()).Range(ctx, r)
	})
	return err
}

// configured calls Standby with the standby setting in the node's configuration.
func (o *Ownership) configured(kv *mvccpb.KeyValue) {
	var config struct {
		Standby json.RawMessage `json:"standby"`
		failover.Request
	}
	if kv != nil {
		_ = json.Unmarshal(kv.Value, &config) // vipd, which also follows this key, reports mistakes
	}
	o.Standby(len(config.Standby) > 0 && string(config.Standby) != "null" && string(config.Standby) != "false", config.Request)
}

// change converts a key to a change to the failover protocol's records. It returns false for other
// keys. It passes the heartbeat keys to Secrets.
func (o *Ownership) change(kv *mvccpb.KeyValue, gone bool) (c failover.RecordChange, ok bool) {
	rest, ok := strings.CutPrefix(string(kv.Key), o.keys.Prefix+schema.OwnershipFolder)
	if !ok {
		return c, false
	}
	if rest == "key" && !gone {
		var s secrets
		if json.Unmarshal(kv.Value, &s) == nil {
			o.Secrets(s.list())
		}
		return c, false
	}
	kind, name, ok := strings.Cut(rest, "/")
	c = failover.RecordChange{Key: failover.Key{Kind: failover.RecordKind(kind), Name: name}, Revision: kv.ModRevision}
	if !gone {
		c.Text = append([]byte{}, kv.Value...)
	}
	return c, ok
}

// follow reports changes and renews the lease, until either fails.
func (o *Ownership) follow(ctx context.Context, m *client.Member, l *client.Lease, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	var keeping sync.WaitGroup
	defer keeping.Wait() // only one goroutine at a time may use the lease
	defer cancel()
	records := m.Client.Watch(ctx, o.keys.Prefix+schema.OwnershipFolder, clientv3.WithPrefix(), clientv3.WithRev(revision+1), clientv3.WithProgressNotify())
	config := m.Client.Watch(ctx, o.keys.NodeConfig(o.node), clientv3.WithRev(revision+1))
	kept := make(chan error, 1)
	keeping.Go(func() { kept <- o.keep(ctx, l) })
	wanted := make(chan int64, 1)
	keeping.Go(func() { o.probe(ctx, m, wanted) })
	look := time.NewTicker(ownershipProbe)
	defer look.Stop()
	heard := time.Now()
	progressed := false
	behind := int64(0)
	for {
		select {
		case err := <-kept:
			return err
		case behind = <-wanted:
		case <-look.C:
			if time.Since(heard) > ownershipSilence {
				return o.silent(ctx, m, progressed)
			}
		case answer, ok := <-config:
			if !ok || answer.Err() != nil {
				return errors.Join(errors.New("the watch has ended"), answer.Err())
			}
			for _, e := range answer.Events {
				if e.Type == mvccpb.DELETE {
					e.Kv = nil
				}
				o.configured(e.Kv)
			}
		case answer, ok := <-records:
			if !ok || answer.Err() != nil {
				return errors.Join(errors.New("the watch has ended"), answer.Err())
			}
			if len(answer.Events) > 0 || answer.Header.Revision >= behind {
				heard = time.Now()
			}
			progressed = progressed || answer.IsProgressNotify()
			if o.proxied && progressed {
				o.proxied = false
				o.Report(nil)
			}
			o.history.Follow(answer.Header.Revision, answer.Events)
			o.seen.follow(answer.Events)
			var changes []failover.RecordChange
			for _, e := range answer.Events {
				if c, ok := o.change(e.Kv, e.Type == mvccpb.DELETE); ok {
					changes = append(changes, c)
				}
			}
			o.OnRecords(changes, answer.Header.Revision, false)
		}
	}
}

// probe requests etcd's revision with a linearizable read, and then requests the progress of the
// watches, until ctx ends. If the watches' member does not answer, the request moves to another
// member, which ends the watches.
func (o *Ownership) probe(ctx context.Context, m *client.Member, wanted chan<- int64) {
	for wake.Sleep(ctx, ownershipProbe) {
		revision, err := o.agreed(ctx)
		if err != nil {
			continue // only a missing answer ends the watches
		}
		select {
		case wanted <- revision:
		case <-ctx.Done():
			return
		}
		_ = m.Client.RequestProgress(ctx)
	}
}

// agreed returns etcd's revision from a linearizable read.
func (o *Ownership) agreed(ctx context.Context) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, ownershipProbe)
	defer cancel()
	err = o.watchMembers.Do(ctx, func(ctx context.Context, m *client.Member) error {
		answer, err := etcdserverpb.NewKVClient(m.Conn()).Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(o.keys.NodeConfig(o.node)), CountOnly: true})
		revision = answer.GetHeader().GetRevision()
		return err
	})
	return revision, err
}

// silent returns the reason why no messages arrive. A gRPC proxy answers requests, but not requests
// for progress.
func (o *Ownership) silent(ctx context.Context, m *client.Member, progressed bool) error {
	ctx, cancel := context.WithTimeout(ctx, ownershipCall)
	defer cancel()
	if _, err := m.Client.Get(ctx, o.keys.NodeConfig(o.node), clientv3.WithCountOnly()); err == nil && !progressed {
		o.proxied = true
		return fmt.Errorf("etcd at %s answers, but does not report the progress of watches, like etcd's gRPC proxy: name etcd's members as endpoints",
			strings.Join(o.client.Config.Endpoints, ", "))
	}
	o.watchMembers.Leave(m)
	return errors.New("etcd has stopped answering")
}

// keep renews the lease, and writes the member's record when it has changed.
func (o *Ownership) keep(ctx context.Context, l *client.Lease) error {
	renew := time.NewTicker(ownershipTTL / 5)
	defer renew.Stop()
	failures := 0
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.wake:
			if err = o.putMember(ctx, l); err != nil {
				o.wake.Send() // retry
			}
		case <-renew.C:
			bounded, cancel := context.WithTimeout(ctx, ownershipTTL/5)
			err = l.Alive(bounded)
			cancel()
		}
		if failures++; err == nil {
			failures = 0
		} else if failures == 3 || !client.IsTimeout(err) {
			return fmt.Errorf("renewing the registration: %w", err)
		}
	}
}
