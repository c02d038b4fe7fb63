package fleet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"vipd/store"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// registrars is the number of registrars in TestMemberCut. ttl is the duration of their leases.
const (
	registrars = 6
	ttl        = 10 * time.Second
)

// cutFleet is a cluster of three members in network namespaces, and programs that use it from the
// host.
type cutFleet struct {
	t       *testing.T
	bin     string
	etcd    *etcdkit.Cluster
	sources [9]*watch.Source
}

// TestMemberCut cuts each member off from the other members, in each direction and for longer than
// a lease. Clients still reach the member. Writes and reads must succeed, no registrar may lose its
// key, and sources must receive all changes.
func TestMemberCut(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "nft", "ip")
	f := newCutFleet(t)
	losses := etcdkit.Losses()
	for i, m := range f.etcd.Members {
		for j, loss := range losses {
			if !wait.Soaking() && i != j {
				continue
			}
			t.Run(fmt.Sprintf("member %d %s", i, loss), func(t *testing.T) { f.cut(t, m, loss) })
		}
	}
}

func newCutFleet(t *testing.T) *cutFleet {
	l := lab.New(t)
	hosts, _ := etcdkit.Hosts(l, 3)
	f := &cutFleet{t: t, bin: program.Bin(t), etcd: etcdkit.Start(t, etcdkit.Options{Members: 3, Hosts: hosts})}
	for i := range registrars {
		f.register(fmt.Sprintf("10.2.0.%d", i+1))
	}
	wait.For(t, wait.Patience, "all registrars' keys", func() bool { return len(f.registered(t)) == registrars })
	return f
}

// registered returns the creation revision of each registrar's key, which shows whether the key was
// ever lost.
func (f *cutFleet) registered(t *testing.T) map[string]int64 {
	t.Helper()
	created := map[string]int64{}
	client := f.etcd.Client()
	wait.For(t, wait.Patience, "the registrars' keys to be read", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		answer, err := client.Get(ctx, prefix+"/endpoints/web/", clientv3.WithPrefix())
		if err != nil {
			return false
		}
		for _, kv := range answer.Kvs {
			created[string(kv.Key)] = kv.CreateRevision
		}
		return true
	})
	return created
}

// follow starts sources that connect to different members, including the member that is cut off.
func (f *cutFleet) follow(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for i := range f.sources {
		s, err := watch.New(watch.Options{Config: client.Config{Endpoints: f.etcd.Endpoints(), Prefix: prefix}})
		if err != nil {
			f.t.Fatal(err)
		}
		f.sources[i] = s
		running.Go(func() { _ = s.Watch(ctx, func(store.Snapshot) {}) }) // Watch fails only if it already runs
	}
}

// register starts a registrar for the endpoint at address.
func (f *cutFleet) register(address string) {
	log, err := os.Create(filepath.Join(f.t.TempDir(), "log"))
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(f.bin, "vipctl"), "--etcd", strings.Join(f.etcd.Endpoints(), ","), "register", "web", address, "--ttl", ttl.String())
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, proxiedEnv()
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		text, _ := os.ReadFile(log.Name())
		if strings.Contains(string(text), "held by another") {
			f.t.Errorf("registrar of %s reports another registrar, want no report", address)
		}
		if f.t.Failed() {
			f.t.Logf("log of the registrar of %s:\n%s", address, text)
		}
	})
}

// proxiedEnv returns an environment with a web proxy that does not exist. vipctl must not use it
// for etcd.
func proxiedEnv() []string {
	const nobody = "http://10.6.0.254:9"
	return append(os.Environ(), "http_proxy="+nobody, "https_proxy="+nobody, "HTTPS_PROXY="+nobody, "all_proxy="+nobody)
}

// vipctl runs a command, and returns its output.
func (f *cutFleet) vipctl(stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(f.bin, "vipctl"), append([]string{"--etcd", strings.Join(f.etcd.Endpoints(), ",")}, args...)...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), proxiedEnv()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// cut cuts one member off from the other members. During the cut, commands must succeed, and
// sources must receive each change. A command that fails while the other members have no leader is
// repeated.
func (f *cutFleet) cut(t *testing.T, m *etcdkit.Member, loss etcdkit.Loss) {
	f.follow(t)
	wait.For(t, wait.Patience, "apply before the cut", func() bool { _, err := f.vipctl(service(80), "apply", "-f", "-"); return err == nil })
	f.waitForAll(t)
	before := f.registered(t)
	m.CutPeers(loss)
	heal := sync.OnceFunc(m.HealPeers)
	defer heal()
	w := f.witness(t, m)
	run := func(stdin string, args ...string) {
		wait.For(t, wait.Patience, fmt.Sprintf("vipctl %q to succeed", args), func() bool {
			began := time.Now()
			out, err := f.vipctl(stdin, args...)
			if err == nil {
				return true
			}
			if gap := w.gap(began); gap < leaderless {
				t.Fatalf("vipctl %q: error = %v after %s, want none, because other clients waited at most %s\n%s", args, err, time.Since(began), gap, out)
			}
			return false
		})
	}
	began := time.Now()
	for n := 0; n < 10 || time.Since(began) < ttl+ttl/2; n++ {
		run(service(81+n), "apply", "-f", "-")
		run("", "get", "services")
		f.waitForAll(t)
		time.Sleep(500 * time.Millisecond) // the cut must last longer than a lease
	}
	gap := w.gap(began)
	heal()
	if after := f.registered(t); !maps.Equal(before, after) && gap < leaderless {
		t.Errorf("creation revisions of registrars' keys = %v, want %v as before the cut", after, before)
	}
}

// service returns a configuration with a service on a port.
func service(port int) string {
	return fmt.Sprintf("[services.web]\nvips = [\"10.96.0.10\"]\nports = [{ port = %d }]\n", port)
}

// leaderless is how long the other members may fail to answer. After that, the test assumes that
// they have no leader, and permits failures.
const leaderless = 2 * time.Second

// witness sends requests to the members that are not cut off, each through its own client.
type witness struct {
	mu       sync.Mutex
	answered []time.Time
}

func (f *cutFleet) witness(t *testing.T, cut *etcdkit.Member) *witness {
	w := &witness{answered: []time.Time{time.Now()}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for _, m := range f.etcd.Members {
		if m == cut {
			continue
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{f.etcd.URL(m.Addr())}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			defer func() { _ = client.Close() }() // the client is no longer used
			for ctx.Err() == nil {
				w.ask(ctx, client)
			}
		})
	}
	return w
}

// ask writes a key, and records when the answer arrived.
func (w *witness) ask(ctx context.Context, client *clientv3.Client) {
	bounded, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := client.Put(bounded, "/witness", ""); err == nil {
		w.mu.Lock()
		w.answered = append(w.answered, time.Now())
		w.mu.Unlock()
	}
	time.Sleep(50 * time.Millisecond) // interval of writes
}

// gap returns the longest period without an answer after since.
func (w *witness) gap(since time.Time) (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.answered[0]
	for _, at := range append(w.answered, time.Now()) {
		if at.After(since) {
			longest = max(longest, at.Sub(last))
		}
		last = at
	}
	return longest
}

// waitForAll waits until all sources have received the last change.
func (f *cutFleet) waitForAll(t *testing.T) {
	var revision int64
	wait.For(t, wait.Patience, "the revision of the last change", func() bool {
		w, err := etcd.NewStore(client.Config{Endpoints: f.etcd.Endpoints(), Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.Close() }()
		s, err := w.Service(t.Context(), "web")
		if err == nil && s != nil {
			revision = s.Revision
		}
		return revision > 0
	})
	for i, s := range f.sources {
		wait.For(t, wait.Patience, fmt.Sprintf("source %d to see revision %d", i, revision), func() bool { return s.Position().Seen >= revision })
	}
}
