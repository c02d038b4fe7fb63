package etcd_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/store/etcd/client"
	"vipd/store/etcd/fleet"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

type votes = snap.Map[balancer.Target, *quorum.Vote]

func ups(n int) (all votes) {
	for i := range n {
		all = all.Set(place80(i), &quorum.Vote{Verdict: balancer.HealthUp, Since: time.UnixMilli(1_800_000_000_123).UTC(), Cause: "connected"})
	}
	return all
}

func place80(i int) balancer.Target {
	return balancer.Target{Service: "web", Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: 80}
}

// voting is a voter that runs for a node, with its reports.
type voting struct {
	*fleet.HealthVoter
	reports
	stop func()
}

func vote(t *testing.T, config client.Config, node string) *voting {
	t.Helper()
	v, err := newWriter(t, config).HealthVoter(node, quorum.Checker{Exec: true}, life)
	if err != nil {
		t.Fatal(err)
	}
	out := &voting{HealthVoter: v}
	v.Report = out.add
	out.stop = inBackground(t, v.Run)
	return out
}

// inBackground runs a function in a goroutine until the test ends or stop is called.
func inBackground(t *testing.T, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// reader follows a board, and records its last state.
type reader struct {
	t    *testing.T
	stop func()

	mu       sync.Mutex // guards the fields below
	last     quorum.Board
	err      error
	reported int
	also     func(quorum.Board) // if not nil, it also receives each state of the board
}

// passBoards makes the reader call also, with the current board now, and later with the board after
// each change.
func (r *reader) passBoards(also func(quorum.Board)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.also = also
	also(r.last)
}

func readBoard(t *testing.T, o fleet.BoardOptions) *reader {
	t.Helper()
	o.Timing = hastened()
	b, err := fleet.NewHealthBoard(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t}
	r.stop = inBackground(t, func(ctx context.Context) { b.Watch(ctx, r.publish) })
	return r
}

func (r *reader) publish(b quorum.Board, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.err = b, err
	r.reported++
	if r.also != nil {
		r.also(b)
	}
}

func (r *reader) board() (quorum.Board, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.err
}

func (r *reader) wait(what string, board func(quorum.Board) bool) quorum.Board {
	r.t.Helper()
	wait.For(r.t, within, what, func() bool { b, _ := r.board(); return board(b) })
	b, _ := r.board()
	return b
}

// has returns a condition that is true if these votes by the given node are the only votes on a
// board.
func has(node balancer.NodeName, all votes) func(quorum.Board) bool {
	return func(b quorum.Board) bool {
		for t, v := range all.All() {
			if got := b.Votes.At(quorum.VoteKey{Target: t, Node: node}); got == nil || *got != *v {
				return false
			}
		}
		return b.Connected && b.Nodes.At(node).Exec && b.Votes.Len() == all.Len()
	}
}

func (p *place) now() int64 {
	p.t.Helper()
	answer, err := p.client.Get(p.t.Context(), "/none")
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.Header.Revision
}

// TestHealthVotesWrittenOnce makes a voter write many votes. It must write them in few
// transactions, and must not write unchanged votes again unless they were lost. When the voter
// stops, the votes must be removed with the node.
func TestHealthVotesWrittenOnce(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	b := readBoard(t, fleet.BoardOptions{Config: p.config})
	all := ups(950)
	before := p.now()
	n := vote(t, p.config, "n1")
	n.Set(quorum.Checker{Exec: true}, all)
	b.wait("all votes", has("n1", all))
	if writes := p.now() - before; writes > 12 && n.troubles() == 0 {
		t.Errorf("transactions for 950 votes = %d, want at most 12", writes)
	}
	before = p.now()
	n.Set(quorum.Checker{Exec: true}, all)
	time.Sleep(life) // meanwhile, the lease is renewed three times
	if writes := p.now() - before; writes != 0 && n.troubles() == 0 {
		t.Errorf("transactions without a change = %d, want 0", writes)
	}
	w := newWriter(t, p.config)
	if s, err := w.Read(t.Context(), nil); err != nil || len(s.Problems) > 0 || s.Services.Len()+s.Endpoints.Len() > 0 {
		t.Errorf("Read() = %+v, %v, want no services and no problems", s, err)
	}
	if nodes, revision, err := w.Nodes(t.Context()); err != nil || len(nodes) > 0 || revision > 0 {
		t.Errorf("Nodes() = %+v, revision %d, %v, want no nodes and revision 0", nodes, revision, err)
	}
	was, _ := b.board()
	all = all.Delete(place80(7)).Set(place80(8), &quorum.Vote{Verdict: balancer.HealthDown, Since: time.UnixMilli(5).UTC(), Cause: "connection refused"})
	n.Set(quorum.Checker{Exec: true}, all)
	board := b.wait("the changed votes", has("n1", all))
	if writes := p.now() - before; writes != 1 && n.troubles() == 0 {
		t.Errorf("transactions for two changes = %d, want 1", writes)
	}
	changed := 0
	for range snap.Diff(was.Votes, board.Votes) {
		changed++
	}
	if changed != 2 {
		t.Errorf("changed votes = %d, want 2", changed)
	}
	if _, err := p.client.Delete(t.Context(), p.config.Prefix+"/health/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	b.wait("all votes again, after their deletion", has("n1", all))
	p.revoke()
	b.wait("no votes", func(b quorum.Board) bool { return b.Nodes.Len() == 0 && b.Votes.Len() == 0 })
	b.wait("all votes again, after the lease was revoked", has("n1", all))
	n.Set(quorum.Checker{}, all)
	b.wait("the node without programs", func(b quorum.Board) bool { return !b.Nodes.At("n1").Exec && b.Votes.Len() == all.Len() })
	n.Set(quorum.Checker{Exec: true}, all)
	c.Members[0].Stop()
	c.Members[0].Wipe()
	c.Members[0].Start()
	b.wait("all votes in a new etcd", has("n1", all))
	n.stop()
	b.wait("no votes", func(b quorum.Board) bool { return b.Nodes.Len() == 0 && b.Votes.Len() == 0 })
}

// TestHealthVotesRestored deletes, changes and adds a node's votes, as another program might. The
// node's voter must restore its own votes without unnecessary writes.
func TestHealthVotesRestored(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	b := readBoard(t, fleet.BoardOptions{Config: p.config})
	n := vote(t, p.config, "n1")
	all := ups(150)
	n.Set(quorum.Checker{Exec: true}, all)
	b.wait("all votes", has("n1", all))
	before := p.now()
	folder := p.config.Prefix + "/health/n1/web/"
	for _, op := range []clientv3.Op{
		clientv3.OpDelete(folder+"10.0.0.1", clientv3.WithPrefix()), // deletes 61 votes
		clientv3.OpPut(folder+place80(2).Address(), `{"version":1,"verdict":"down","since":"2026-01-31T12:00:00Z"}`),
		clientv3.OpPut(folder+"10.9.9.9:9", `{"version":1,"verdict":"down","since":"2026-01-31T12:00:00Z"}`),
	} {
		if _, err := p.client.Do(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	b.wait("the other program's changes", func(b quorum.Board) bool {
		other := b.Votes.At(quorum.VoteKey{Target: place80(2), Node: "n1"})
		return b.Votes.Len() == 150-61+1 && other != nil && other.Verdict == balancer.HealthDown
	})
	b.passBoards(n.SetBoard) // called only now, so the voter receives all changes together
	b.wait("the restored votes", has("n1", all))
	b.passBoards(func(quorum.Board) {})
	if _, err := p.client.Delete(t.Context(), folder, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	b.wait("no votes", func(b quorum.Board) bool { return b.Votes.Len() == 0 })
	b.passBoards(n.SetBoard)
	b.wait("the restored votes", has("n1", all))
	time.Sleep(life) // long enough for an unnecessary write
	if writes := p.now() - before - 4; writes < 3 || writes > 4 && n.troubles() == 0 {
		t.Errorf("transactions to restore votes = %d, want 3, or 4 if the voter received the deletion in two parts", writes)
	}
}

// TestHealthVotesOfFormerDaemon starts a daemon after the node's previous daemon was killed. With
// the previous lease's ID, it must immediately adopt the node's key and remove the previous votes.
// The node must never be missing. With another lease ID, it must change nothing.
func TestHealthVotesOfFormerDaemon(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	b := readBoard(t, fleet.BoardOptions{Config: p.config})
	var gone atomic.Int64
	b.passBoards(func(now quorum.Board) {
		if now.Connected && !now.Nodes.Has("n1") {
			gone.Add(1)
		}
	})
	former, err := p.client.Grant(t.Context(), 3600) // the lease of the killed daemon does not expire during this test
	if err != nil {
		t.Fatal(err)
	}
	folder := p.config.Prefix + "/health/"
	puts := []clientv3.Op{
		clientv3.OpPut(folder+"n1/live", `{"version":1}`, clientv3.WithLease(former.ID)),
		clientv3.OpPut(folder+"n10/live", `{"version":1}`), // the name n10 starts with the node's name n1
		clientv3.OpPut(folder+"n10/web/"+place80(0).Address(), `{"version":1,"verdict":"up","since":"2026-01-31T12:00:00Z"}`),
	}
	for i, service := range []string{"a", "live", "livelier", "web"} { // names of services that sort before and after the node's own key
		puts = append(puts, clientv3.OpPut(folder+"n1/"+service+"/"+place80(i).Address(), `{"version":1,"verdict":"down","since":"2026-01-31T12:00:00Z"}`, clientv3.WithLease(former.ID)))
	}
	if _, err := p.client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
		t.Fatal(err)
	}
	b.wait("the former daemon's votes", func(b quorum.Board) bool { return b.Votes.Len() == 5 && b.Nodes.Len() == 2 })
	gone.Store(0)

	start := func(former int64) (*fleet.HealthVoter, *atomic.Int64) {
		v, err := newWriter(t, p.config).HealthVoter("n1", quorum.Checker{Exec: true}, life)
		if err != nil {
			t.Fatal(err)
		}
		granted := new(atomic.Int64)
		v.Former, v.Granted = former, granted.Store
		v.Set(quorum.Checker{Exec: true}, ups(1))
		return v, granted
	}
	stranger, granted := start(int64(former.ID) + 1)
	stop := inBackground(t, stranger.Run)
	wait.For(t, within, "the other daemon to have a lease", func() bool { return granted.Load() != 0 })
	time.Sleep(time.Second) // during this time, the daemon tries again
	stop()
	if now, _ := b.board(); now.Votes.Len() != 5 || now.Nodes.At("n1").Exec {
		t.Errorf("a daemon with another lease ID changed the board to %+v", now)
	}

	next, granted := start(int64(former.ID))
	inBackground(t, next.Run)
	b.wait("the next daemon's votes alone", func(b quorum.Board) bool {
		return b.Nodes.At("n1").Exec && b.Votes.Len() == 2 && b.Votes.Has(quorum.VoteKey{Target: place80(0), Node: "n1"}) && b.Nodes.Len() == 2
	})
	if n := gone.Load(); n > 0 {
		t.Errorf("the board lacked the node %d times, want never", n)
	}
	answer, err := p.client.Get(t.Context(), folder+"n1/live")
	if err != nil || len(answer.Kvs) != 1 || answer.Kvs[0].Lease != granted.Load() || granted.Load() == int64(former.ID) {
		t.Errorf("the node's key = %+v, want it under the new lease %x; error = %v", answer, granted.Load(), err)
	}
}

// TestHealthBoardMatchesEtcd injects network faults while valid and invalid votes change. After
// each fault, the board must equal the valid votes in etcd. While etcd is unavailable, the board
// must keep its last content.
func TestHealthBoardMatchesEtcd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	b := readBoard(t, fleet.BoardOptions{Config: w.through(), Patience: 50 * time.Millisecond})
	key := func() string { return fmt.Sprintf("/health/n%d/web/%s", w.IntN(3), place80(w.IntN(20)).Address()) }
	for range 6 {
		w.fault()
		for range 5 + w.IntN(30) {
			switch w.IntN(6) {
			case 0:
				w.remove(key())
			case 1:
				w.put(key(), []string{"", "{}", `{"version":2,"verdict":"up"}`, `{"version":1,"verdict":"so"}`, "[1"}[w.IntN(5)])
			case 2:
				w.put(fmt.Sprintf("/health/n%d/live", w.IntN(3)), []string{`{"version":1}`, `{"version":1,"exec":true}`, "?"}[w.IntN(3)])
			case 3:
				w.put("/health/"+[]string{"n1", "n1/web", "n1/web/10.0.0.1", "n1/web/x:80", "/web/10.0.0.1:80"}[w.IntN(5)], `{"version":1,"verdict":"up"}`)
			default:
				w.put(key(), fmt.Sprintf(`{"version":1,"verdict":%q,"since":"2026-01-31T12:00:00Z","cause":"c%d"}`, []string{"up", "down", "unknown"}[w.IntN(3)], w.IntN(9)))
			}
		}
		if w.IntN(3) == 0 {
			w.cluster.Compact()
		}
		w.heal()
		w.put("/health/n9/web/10.9.9.9:9", `{"version":1,"verdict":"up","since":"2026-01-31T12:00:00Z"}`)
		fresh := readBoard(t, fleet.BoardOptions{Config: w.config})
		want := fresh.wait("a new board", func(b quorum.Board) bool { return b.Connected })
		fresh.stop()
		b.wait("the new board's content", func(got quorum.Board) bool {
			same := got.Connected && got.Nodes.Len() == want.Nodes.Len() && got.Votes.Len() == want.Votes.Len()
			for n, c := range want.Nodes.All() {
				same = same && got.Nodes.At(n) == c
			}
			for voteKey, v := range want.Votes.All() {
				same = same && got.Votes.Has(voteKey) && *got.Votes.At(voteKey) == *v
			}
			return same
		})
		w.remove("/health/n9/web/10.9.9.9:9")
	}
	had, _ := b.board()
	w.cluster.Kill()
	away := b.wait("the loss of etcd", func(b quorum.Board) bool { return !b.Connected })
	if _, err := b.board(); err == nil || away.Votes.Len() == 0 || away.Votes.Len() < had.Votes.Len()-1 {
		t.Errorf("votes while etcd is unavailable = %d, want about %d; error = %v, want an error", away.Votes.Len(), had.Votes.Len(), err)
	}
}

// TestHealthRoleRights votes as a user with a node's role. The role must permit reading all votes,
// but writing only the node's own votes. A missing permission must be reported.
func TestHealthRoleRights(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	p := &place{t: t, config: configAt(c, 0)}
	c.EnableAuth(
		etcdkit.User{Name: "node-n1", Password: "one", Read: []string{"/vipda/health/"}, Write: []string{"/vipda/health/n1/"}},
		etcdkit.User{Name: "none", Password: "two"},
	)
	p.client = c.Client()
	as := func(user, password string) client.Config {
		config := p.config
		config.Username, config.PasswordFile = user, filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(config.PasswordFile, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
		return config
	}
	b := readBoard(t, fleet.BoardOptions{Config: as("node-n1", "one")})
	n := vote(t, as("node-n1", "one"), "n1")
	n.Set(quorum.Checker{Exec: true}, ups(3))
	b.wait("the votes", has("n1", ups(3)))
	other := vote(t, as("node-n1", "one"), "n2")
	wait.For(t, within, "the error of a vote as another node", func() bool {
		return strings.Contains(other.last(), "the user node-n1 may not do that: its role has no permission for /vipda/health/n2/")
	})
	denied := readBoard(t, fleet.BoardOptions{Config: as("none", "two"), Patience: time.Millisecond})
	wait.For(t, within, "the error of a user without rights", func() bool {
		_, err := denied.board()
		return err != nil && strings.Contains(err.Error(), "the user none may not read /vipda/health/")
	})
	if got, _ := denied.board(); got.Connected {
		t.Error("the board of a user without read permission is connected")
	}
}

// TestHealthVotesThroughProxy writes votes through a gRPC proxy, before and after an outage of
// etcd. The votes must appear on the board.
func TestHealthVotesThroughProxy(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{})
	proxy := c.StartProxy(c.Endpoints()...)
	p := &place{t: t, client: c.Client(), config: configAt(c, 0)}
	p.config.Endpoints = []string{c.URL(proxy.Addr())}
	b := readBoard(t, fleet.BoardOptions{Config: p.config})
	n := vote(t, p.config, "n1")
	all := ups(3)
	n.Set(quorum.Checker{Exec: true}, all)
	b.wait("the votes", has("n1", all))
	c.Members[0].Kill()
	b.wait("the loss of etcd", func(b quorum.Board) bool { return !b.Connected })
	all = all.Set(place80(1), &quorum.Vote{Verdict: balancer.HealthDown, Since: time.UnixMilli(9).UTC(), Cause: "no answer"})
	n.Set(quorum.Checker{Exec: true}, all)
	c.Members[0].Start()
	b.wait("the votes changed during the outage", has("n1", all))
}
