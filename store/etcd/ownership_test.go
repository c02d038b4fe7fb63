package etcd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/balancer/failover"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/owners"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestOwnershipWithoutRights runs hosts that may not write their records, or may not read whether
// they are on standby. Such a host must not take part in VIP ownership, and must report the missing
// permission.
func TestOwnershipWithoutRights(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	c.EnableAuth(etcdkit.User{Name: "half", Password: "secret", Read: []string{"/vipda/"}},
		etcdkit.User{Name: "blind", Password: "secret", Write: []string{"/vipda/ownership/"}})
	withoutRight(t, p.config, "half", "the user half may not read and write /vipda/ownership/")
	withoutRight(t, p.config, "blind", "the user blind may not read /vipda/nodes/gw1/config")
}

func withoutRight(t *testing.T, config client.Config, user, want string) {
	t.Helper()
	config.Username, config.PasswordFile = user, filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := owners.NewOwnership(config, "gw1")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var reported string
	o.Member = func() failover.Member { return failover.Member{Boot: 1} }
	o.OnRecords = func([]failover.RecordChange, int64, bool) {
		t.Error("records were reported although the host can't register")
	}
	o.Secrets, o.Standby = func([][]byte) {}, func(bool, failover.Request) {}
	o.Report = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			reported = err.Error()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { o.Run(ctx) })
	defer running.Wait()
	defer cancel()
	wait.For(t, wait.Patience, "the missing right", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(reported, want)
	})
	if outcome, _, err := o.Write(ctx, failover.Write{Put: []failover.Put{{Key: failover.Key{Kind: failover.VIPs, Name: "10.0.0.1"}, Text: []byte("{}")}}}); err == nil || outcome != failover.Unsent {
		t.Errorf("outcome of a write = %v, %v, want Unsent and an error", outcome, err)
	}
}

// TestOwnershipBehindProxy connects a host through etcd's gRPC proxy, which does not report the
// progress of watches. The host must report the proxy, and must not report a recovery when it tries
// again.
func TestOwnershipBehindProxy(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	config := p.config
	config.Endpoints = []string{c.URL(c.StartProxy().Addr())}
	o, err := owners.NewOwnership(config, "gw1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var reported atomic.Bool
	var attempts atomic.Int64
	o.Member = func() failover.Member { attempts.Add(1); return failover.Member{Boot: 1} }
	o.OnRecords, o.Secrets, o.Standby = func([]failover.RecordChange, int64, bool) {}, func([][]byte) {}, func(bool, failover.Request) {}
	o.Report = func(err error) {
		if err != nil && strings.Contains(err.Error(), config.Endpoints[0]+" answers, but does not report the progress of watches") {
			reported.Store(true)
		} else if err == nil && reported.Load() {
			t.Error("the host reported a recovery although nothing has changed")
		}
	}
	var running sync.WaitGroup
	running.Go(func() { o.Run(ctx) })
	defer running.Wait()
	defer cancel()
	wait.For(t, wait.Patience, "the remedy", reported.Load)
	wait.For(t, wait.Patience, "another attempt", func() bool { return attempts.Load() > 3 })
}

// startOwnership makes the host gw1 take part in VIP ownership until the test ends. It returns when
// the host has read all records.
func startOwnership(t *testing.T, config client.Config, change ...func(*owners.Ownership)) *owners.Ownership {
	o, err := owners.NewOwnership(config, "gw1")
	if err != nil {
		t.Fatal(err)
	}
	loaded := make(chan struct{})
	first := sync.OnceFunc(func() { close(loaded) })
	o.Member = func() failover.Member { return failover.Member{Boot: 1} }
	o.Secrets, o.Standby, o.Report = func([][]byte) {}, func(bool, failover.Request) {}, func(err error) { t.Log("etcd:", err) }
	o.OnRecords = func(_ []failover.RecordChange, _ int64, all bool) {
		if all {
			first()
		}
	}
	for _, f := range change {
		f(o)
	}
	inBackground(t, func(ctx context.Context) { _ = o.Run(ctx) })
	<-loaded
	return o
}

// TestRekey replaces the key that signs heartbeats while a host takes part. The host must accept
// the next key before it signs with that key, and must finally reject the previous key.
func TestRekey(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	w, err := etcd.NewStore(p.config)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var mu sync.Mutex
	var reported [][][]byte
	startOwnership(t, p.config, func(o *owners.Ownership) {
		o.Secrets = func(keys [][]byte) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, keys)
		}
	})
	if err := w.RekeyOwnership(t.Context(), 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	wait.For(t, wait.Patience, "the host to receive all keys", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(reported) == 4
	})
	mu.Lock()
	defer mu.Unlock()
	before, next := reported[0][0], reported[3][0]
	if bytes.Equal(before, next) || len(next) != 32 {
		t.Errorf("next key = %x, previous key = %x, want a different key of 32 bytes", next, before)
	}
	if want := [][][]byte{{before}, {before, next}, {next, before}, {next}}; !reflect.DeepEqual(reported, want) {
		t.Errorf("reported keys = %x, want %x", reported, want)
	}
}

// TestReadOwnershipWithoutKey reads the owners of VIPs as a user who may read all records except
// the key that signs heartbeats. The owners must be returned.
func TestReadOwnershipWithoutKey(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	startOwnership(t, p.config)
	var folders []string
	for _, folder := range []string{"nodes", "sessions", "vips", "moves", "fenced", "policy"} {
		folders = append(folders, "/vipda/ownership/"+folder+"/")
	}
	vip := failover.Key{Kind: failover.VIPs, Name: "10.0.0.1"}
	if _, err := c.Client().Put(t.Context(), "/vipda/ownership/vips/"+vip.Name, `{"node":"gw1"}`); err != nil {
		t.Fatal(err)
	}
	c.EnableAuth(etcdkit.User{Name: "reader", Password: "secret", Read: folders})
	config := p.config
	config.Username, config.PasswordFile = "reader", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := etcd.NewStore(config)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	all, _, err := w.OwnedVIPs(t.Context())
	if err != nil || len(all) != 1 || all[0].Owner.Node != "gw1" {
		t.Errorf("OwnedVIPs = %+v, %v; want only 10.0.0.1, with the owner gw1", all, err)
	}
	if err := w.RekeyOwnership(t.Context(), 0); !client.Forbidden(err) {
		t.Errorf("RekeyOwnership = %v, want a permission error", err)
	}
}

// TestOwnershipTokens enables authentication after a host has registered, and lets the host's token
// expire between two writes. Both writes must succeed, so each must get a new token.
func TestOwnershipTokens(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{TokenTTL: time.Second})
	config := p.config
	config.Username, config.PasswordFile = "vipd", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := startOwnership(t, config, func(o *owners.Ownership) { o.WriteLimit = wait.Bound(0) })
	c.EnableAuth(etcdkit.User{Name: "vipd", Password: "secret", Read: []string{"/vipda/"}, Write: []string{"/vipda/"}})
	write := func() {
		w := failover.Write{Put: []failover.Put{{Key: failover.Key{Kind: failover.VIPs, Name: "10.0.0.1"}, Text: []byte("{}")}}}
		wait.For(t, wait.Patience, "the connection to etcd", func() bool { // enabling authentication interrupts the connection for a moment
			outcome, _, err := o.Write(t.Context(), w)
			if outcome != failover.Done {
				t.Log(outcome, err)
			}
			return outcome == failover.Done
		})
	}
	write()
	time.Sleep(3 * time.Second) // until the token expires; etcd checks for that every second
	write()
}

// TestOwnershipWhenFull writes to an etcd that has reached its quota and refuses writes. If the
// write's conditions still hold, the write must count as not executed. Otherwise its outcome must
// be unknown: etcd executes the first transaction that exceeds the quota, but returns the same
// error for it.
func TestOwnershipWhenFull(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	o := startOwnership(t, p.config)
	key := failover.Key{Kind: failover.VIPs, Name: "10.0.0.1"}
	put, revision := []failover.Put{{Key: key, Text: []byte("{}")}}, int64(0)
	wait.For(t, wait.Patience, "the host to be connected before etcd is full", func() bool {
		outcome, at, _ := o.Write(t.Context(), failover.Write{Put: put})
		revision = at
		return outcome == failover.Done
	})
	alarm := &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE}
	if _, err := etcdserverpb.NewMaintenanceClient(p.client.ActiveConnection()).Alarm(t.Context(), alarm); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[int64]failover.Outcome{revision: failover.Unsent, revision - 1: failover.Unknown} {
		w := failover.Write{If: []failover.Condition{{Key: key, Revision: at}}, Put: put}
		wait.For(t, wait.Patience, fmt.Sprintf("a write at revision %d to have the outcome %v", at, want), func() bool {
			outcome, _, err := o.Write(t.Context(), w)
			if outcome == want && client.Full(err) {
				return true
			}
			t.Logf("outcome of the write = %v, %v", outcome, err) // try again, because the answer may have been late
			return false
		})
	}
}

// TestMoveIsForgotten disconnects a command that has requested a move of a VIP. etcd must delete
// the request when the command would stop waiting.
func TestMoveIsForgotten(t *testing.T) {
	t.Parallel()
	_, relay, p := single(t, etcdkit.Options{})
	vip := netip.MustParseAddr("10.0.0.1")
	p.put("/ownership/vips/10.0.0.1", `{"node":"gw1"}`)
	asked := func() bool {
		answer, err := p.client.Get(t.Context(), p.config.Prefix+"/ownership/moves/10.0.0.1")
		return err == nil && len(answer.Kvs) == 1
	}
	w := newWriter(t, p.config)
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if to, _, err := w.MoveVIP(ctx, vip, failover.Move{Until: time.Now().Add(life)}); err == nil {
			t.Errorf("MoveVIP = %s and no error, want an error", to)
		}
	})
	defer waiting.Wait()
	defer cancel()
	wait.For(t, wait.Patience, "the move in etcd", asked)
	relay.Cut()
	wait.For(t, wait.Patience, "etcd to delete the request", func() bool { return !asked() })
}

// TestMoveIsAnnounced moves a VIP to a host that announces it, to a host that does not announce it,
// and to a host whose version can't report this. The second move must fail after its timeout.
func TestMoveIsAnnounced(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	vip := netip.MustParseAddr("10.0.0.1")
	w := newWriter(t, p.config)
	move := func(member, why string, timeout time.Duration) string {
		p.put("/ownership/nodes/gw2", `{"addresses":[{"address":"10.0.0.9","networks":["10.0.0.0/24"]}],`+member+`}`)
		p.put("/ownership/vips/10.0.0.1", `{"node":"gw1","gen":1}`)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		moved := make(chan string, 1)
		go func() {
			to, announced, err := w.MoveVIP(ctx, vip, failover.Move{Until: time.Now().Add(wait.Patience)})
			moved <- fmt.Sprint(to, " ", announced, " ", err)
		}()
		wait.For(t, wait.Patience, "the request", func() bool {
			answer, err := p.client.Get(t.Context(), p.config.Prefix+"/ownership/moves/10.0.0.1")
			return err == nil && len(answer.Kvs) == 1 || ctx.Err() != nil
		})
		p.put("/ownership/vips/10.0.0.1", `{"node":"gw2","gen":2,"why":"`+why+`"}`)
		return <-moved
	}
	for _, test := range []struct {
		member, why string
		timeout     time.Duration
		want        string
	}{
		{`"announced":[{"vip":"10.0.0.1","gen":2}]`, "move", wait.Patience, "gw2 true <nil>"},
		{`"announced":[{"vip":"10.0.0.1","gen":1},{"vip":"10.0.0.2","gen":2}]`, "force", time.Second, `gw2 false gw2 owns 10.0.0.1, but has not announced it in time: "vipctl status" there shows the reason`},
		{`"announced":[]`, "silent", wait.Patience, "gw2 false <nil>"},
		{`"weight":1`, "move", wait.Patience, "gw2 false <nil>"},
	} {
		got := ""
		wait.For(t, wait.Patience, "MoveVIP to see gw2", func() bool { // the timeout of a second may expire before etcd has answered
			got = move(test.member, test.why, test.timeout)
			return strings.HasPrefix(got, "gw2 ")
		})
		if got != test.want {
			t.Errorf("member %s, reason %s: MoveVIP = %s, want %s", test.member, test.why, got, test.want)
		}
	}
}

// TestLateRegistration writes a newer registration for a host while the host registers. The host's
// own registration is then too late: it must not take effect, and the host must register again.
func TestLateRegistration(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	o, err := owners.NewOwnership(p.config, "gw1")
	if err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	o.Member = func() failover.Member {
		n := calls.Add(1)
		if n == 1 { // a newer registration exists before this call returns
			p.put("/ownership/nodes/gw1", `{"boot":"00000000000000ff"}`)
		}
		return failover.Member{Boot: failover.ID(n)}
	}
	loaded := make(chan []failover.RecordChange, 10)
	o.OnRecords = func(changes []failover.RecordChange, _ int64, all bool) {
		if all {
			loaded <- changes
		}
	}
	o.Secrets, o.Standby, o.Report = func([][]byte) {}, func(bool, failover.Request) {}, func(error) {}
	inBackground(t, func(ctx context.Context) { _ = o.Run(ctx) })
	var member failover.Member
	all := <-loaded
	if err := json.Unmarshal(all[0].Text, &member); err != nil || len(all) > 1 || member.Boot < 2 || member.Boot == 0xff { // if etcd was slow, this may be a later registration than the second
		t.Errorf("registered member = %+v, %v, want only a registration newer than the first, and not the test's", member, err)
	}
}

// TestOwnershipAfterRestoreAndCompaction restores etcd from a backup while a host is cut off. The
// backup lacks the last session. After the restore, etcd receives more writes and is compacted. The
// host must detect the restore, although the last record that it has seen is its own, which it
// writes again.
func TestOwnershipAfterRestoreAndCompaction(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{})
	m := c.Members[0]
	p.put("/ownership/sessions/gw2", `{"id":"0000000000000001"}`)
	m.Stop()
	backup := m.Backup()
	m.Start()
	p.client = c.Client()
	o, err := owners.NewOwnership(p.config, "gw1")
	if err != nil {
		t.Fatal(err)
	}
	var followed atomic.Int64
	own := p.config.Prefix + "/ownership/nodes/gw1"
	o.Member = func() failover.Member { return failover.Member{Boot: 1} }
	o.OnRecords = func(_ []failover.RecordChange, revision int64, _ bool) { followed.Store(revision) }
	o.Secrets, o.Standby, o.Report = func([][]byte) {}, func(bool, failover.Request) {}, func(error) {}
	ended := make(chan error, 1)
	inBackground(t, func(ctx context.Context) { ended <- o.Run(ctx) })
	upTo := func(what string, revision int64) {
		t.Helper()
		wait.For(t, wait.Patience, what, func() bool { return followed.Load() >= revision })
	}
	upTo("the first state", 1)
	session := p.put("/ownership/sessions/gw2", `{"id":"0000000000000002"}`)
	upTo("the session", session)
	o.MemberChanged()
	upTo("the own key", session+1)
	if answer, err := p.client.Get(t.Context(), own); err != nil || answer.Kvs[0].ModRevision < session {
		t.Fatalf("the host's own key = %v, %v, want it written after the session", answer, err)
	}
	relay.Cut()
	m.Stop()
	m.Restore(backup)
	m.Start()
	p.client = c.Client()
	for range 50 {
		p.put("/elsewhere", "x")
	}
	c.Compact()
	relay.Heal()
	select {
	case err := <-ended:
		if !errors.Is(err, client.ErrHistoryChanged) {
			t.Errorf("Run = %v, want %v", err, client.ErrHistoryChanged)
		}
	case <-time.After(wait.Bound(30 * time.Second)):
		t.Errorf("Run still follows etcd, at revision %d, want it to return an error", followed.Load())
	}
}

// TestFenceNode fences a node that has a session but is not registered, twice. Fencing a registered
// node must fail. Fencing an unknown name must fail with a list of the nodes that have a session.
func TestFenceNode(t *testing.T) {
	t.Parallel()
	_, _, p := single(t, etcdkit.Options{})
	w := newWriter(t, p.config)
	p.put("/ownership/sessions/gw1", `{"id":"0000000000000001"}`)
	p.put("/ownership/sessions/gw2", `{"id":"0000000000000002"}`)
	p.put("/ownership/nodes/gw2", `{"boot":"0000000000000001"}`)
	fence := func(node, want string) {
		t.Helper()
		if err := w.FenceNode(t.Context(), node, failover.Fence{}); err == nil != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("FenceNode(%s) = %v, want %q", node, err, want)
		}
	}
	fence("gw3", "gw3 has no session in etcd, and no VIP waits for it: nodes with a session: gw1, gw2")
	fence("gw2", "gw2 was registered in etcd less than 15 s ago")
	fence("gw1", "")
	p.remove("/ownership/sessions/gw1") // as the other nodes do for a fenced node
	fence("gw1", "")
}
