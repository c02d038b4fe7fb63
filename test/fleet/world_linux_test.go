package fleet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/wait"
)

// patience is how long a busy machine may take for a fast reaction. It is long because a source
// that keeps failing pauses for up to 15 s.
const patience = time.Minute

// These are the services. The endpoints of "web" change only if a test changes them. The service
// "move" has one endpoint, which tests move between servers.
const (
	webVIP  = "10.96.0.10"
	moveVIP = "10.96.0.11"
)

// world is a fleet with its network, clients, servers and etcd.
type world struct {
	*lab.Lab
	t       testing.TB
	bin     string // the directory of vipd and vipctl
	etcd    *etcdkit.Cluster
	client  *clientv3.Client
	servers *lab.NS
	nodes   []*node
	secret  string // the password of vipd
	// moved counts the changes to services. streamed counts the changes to endpoints that stream
	// makes.
	moved, streamed int
}

// newWorld builds the network, starts etcd with users, and writes both services. No vipd runs yet.
func newWorld(t testing.TB, bin string, nodes int) *world {
	t.Helper()
	lab.Need(t, "iptables", "ip6tables", "ipset", "nft", "ip")
	w := &world{Lab: lab.New(t), t: t, bin: bin}
	w.etcd = etcdkit.Start(t, etcdkit.Options{Members: 3})
	w.secret = fmt.Sprintf("secret-%d", time.Now().UnixNano())
	w.etcd.EnableAuth(w.users(nodes)...)
	w.client = w.etcd.Client()
	bridge := w.Bridge("bridge")
	w.servers = w.Add("servers")
	bridge.Join(w.servers)
	for i := 1; i <= 4; i++ {
		w.servers.AddAddr("bridge", server(i).String()+"/24")
		w.servers.Echo("tcp", fmt.Sprint("e", i), netip.AddrPortFrom(server(i), 8080))
	}
	for i := range nodes {
		w.nodes = append(w.nodes, w.newNode(i, bridge))
	}
	w.put("/services/web", `{"vips":["`+webVIP+`"],"ports":[{"port":80,"target_port":8080}]}`)
	w.put("/services/move", `{"vips":["`+moveVIP+`"],"ports":[{"port":80,"target_port":8080}],"drain_timeout":"1s"}`)
	w.endpoint("web", "a", 1)
	w.endpoint("web", "b", 2)
	w.endpoint("move", "a", 3)
	return w
}

func server(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, 0, byte(20 + i)}) }

// readOnly is the node whose user may write nothing, not even its presence.
const readOnly = 2

// users returns the daemons' etcd users. Each may read the keys that its daemon follows, and may
// write its own node's keys, except the user of the node readOnly.
func (w *world) users(nodes int) (users []etcdkit.User) {
	for i := range nodes {
		name := fmt.Sprint("n", i+1)
		u := etcdkit.User{Name: name, Password: w.secret, Read: []string{
			prefix + "/services/", prefix + "/endpoints/", prefix + "/overrides/", prefix + "/vips/", prefix + "/pools/", prefix + "/ownership/", prefix + "/hosts/", prefix + "/pending", prefix + "/nodes/" + name + "/",
		}}
		if i != readOnly {
			u.Write = []string{prefix + "/nodes/" + name + "/", prefix + "/hosts/" + name}
		}
		users = append(users, u)
	}
	return users
}

// endpoint writes an endpoint of a service. The endpoint has the address of server i.
func (w *world) endpoint(service, id string, i int) (revision int64) {
	w.t.Helper()
	return w.put("/endpoints/"+service+"/"+id, fmt.Sprintf(`{"address":%q}`, server(i)))
}

// put writes a key, and returns the revision. It retries while the cluster has no leader.
func (w *world) put(key, value string) (revision int64) {
	w.t.Helper()
	w.try("take "+key, func(ctx context.Context) error {
		answer, err := w.client.Put(ctx, prefix+key, value)
		if err == nil {
			revision = answer.Header.Revision
		}
		return err
	})
	return revision
}

// remove deletes a key. Like put, it retries while the cluster has no leader.
func (w *world) remove(key string) {
	w.t.Helper()
	w.try("remove "+key, func(ctx context.Context) error {
		_, err := w.client.Delete(ctx, prefix+key)
		return err
	})
}

func (w *world) try(what string, operation func(context.Context) error) {
	w.t.Helper()
	var err error
	defer func() {
		if w.t.Failed() && err != nil {
			w.t.Logf("%s: error = %v, want none", what, err)
		}
	}()
	wait.For(w.t, patience, "etcd to "+what, func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Second)
		defer cancel()
		if err = operation(ctx); err != nil {
			w.client = w.etcd.Client() // a client fails permanently after its token has expired
		}
		return err == nil
	})
}

// start starts every vipd in a mode, and waits until all of them serve.
func (w *world) start(mode string) {
	w.t.Helper()
	for _, n := range w.nodes {
		n.start(mode)
	}
	w.each(func(n *node) { n.ready() })
}

func (w *world) each(do func(*node)) {
	w.t.Helper()
	for _, n := range w.nodes {
		do(n)
	}
}

// newNode creates the namespaces of a vipd and of a client behind it, and the relays to etcd.
func (w *world) newNode(i int, bridge *lab.Bridge) *node {
	w.t.Helper()
	n := &node{
		world: w, name: fmt.Sprint("n", i+1), ns: w.Add(fmt.Sprint("n", i+1)), behind: w.Add(fmt.Sprint("c", i+1)), dir: w.t.TempDir(),
	}
	address := fmt.Sprint("10.2.0.", 11+i)
	bridge.Join(n.ns, address+"/24")
	w.Link(n.ns, n.behind, fmt.Sprintf("10.1.%d.1/24", i), fmt.Sprintf("10.1.%d.2/24", i))
	n.behind.Default(fmt.Sprintf("10.1.%d.1", i))
	w.servers.Route(fmt.Sprintf("10.1.%d.0/24", i), address)
	n.ns.Echo("tcp", "program", netip.AddrPortFrom(netip.IPv4Unspecified(), hostPort))
	for _, m := range w.etcd.Members {
		listener, err := n.ns.Listen("tcp", m.Addr())
		if err != nil {
			w.t.Fatal(err)
		}
		n.relays = append(n.relays, etcdkit.NewRelayOn(w.t, listener, m.Addr()))
	}
	if err := os.WriteFile(filepath.Join(n.dir, "password"), []byte(w.secret+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	n.connect()
	return n
}
