package etcdkit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"

	"vipd/test/program"
	"vipd/test/wait"
)

// Options configures etcd for a test. The zero value means a single member without TLS and users.
type Options struct {
	// Members is the number of members. Default 1.
	Members int
	// TLS makes clients use https, with a client certificate.
	TLS bool
	// TokenTTL is the lifetime of a user's token. Default: etcd's own.
	TokenTTL time.Duration
	// Flags are additional arguments of each member.
	Flags []string
	// Hosts has the namespaces of the members. If nil, they run on a loopback address of the test's
	// own namespace.
	Hosts []Host
}

// Host is the network namespace of a member.
type Host struct {
	// Addr is the member's address in the namespace. The test must be able to reach it.
	Addr string
	// Do calls a function in the namespace, like lab.NS.Do.
	Do func(func() error) error
}

// Cluster is a running etcd.
type Cluster struct {
	Members []*Member
	// Files are the certificates, if TLS is used.
	Files Files

	t        testing.TB
	options  Options
	host     string
	password string // password of root, if there are users
}

// Start starts etcd and waits until it serves.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs etcd, which -short does without")
	}
	binary, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("needs etcd (Debian's package etcd-server)")
	}
	o.Members = max(o.Members, 1)
	// Each cluster has its own loopback address, so no other test can occupy the ports before the
	// members do.
	c := &Cluster{t: t, options: o, host: fmt.Sprintf("127.%d.%d.%d", 16+rand.IntN(200), rand.IntN(256), 1+rand.IntN(250))}
	if o.TLS {
		c.Files = newFiles(t, c.host)
	}
	ports := freePorts(t, c.host, 2*o.Members)
	var peers []string
	for i := range o.Members {
		m := &Member{
			t: t, binary: binary, name: fmt.Sprintf("m%d", i), dir: filepath.Join(t.TempDir(), "data"),
			client: ports[2*i], peer: "http://" + ports[2*i+1],
		}
		if o.Hosts != nil {
			m.host, m.client, m.peer = &o.Hosts[i], o.Hosts[i].Addr+":2379", "http://"+o.Hosts[i].Addr+":"+peerPort
		}
		m.ready = func() bool { return c.serves(m) }
		m.log = filepath.Join(t.TempDir(), "log")
		peers = append(peers, m.name+"="+m.peer)
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		m.flags = c.flags(m, strings.Join(peers, ","))
	}
	c.Start()
	return c
}

// Kill kills all members.
func (c *Cluster) Kill() {
	for _, m := range c.Members {
		m.Kill()
	}
}

// Start restarts all members after Kill, and waits until they serve. They start together, because a
// single member would wait for the others.
func (c *Cluster) Start() {
	c.t.Helper()
	for _, m := range c.Members {
		m.launch()
	}
	for _, m := range c.Members {
		m.wait()
	}
}

// flags returns flags for a member. A single member starts its election after 100 ms, because no
// other member can be elected.
func (c *Cluster) flags(m *Member, peers string) []string {
	heartbeat, election := 10, 100
	if c.options.Members > 1 {
		heartbeat, election = 100, 1000
	}
	url := c.scheme() + m.client
	flags := []string{
		"--name", m.name, "--data-dir", m.dir, "--log-level", "error", "--logger", "zap", "--log-outputs", "stderr",
		"--heartbeat-interval", fmt.Sprint(heartbeat), "--election-timeout", fmt.Sprint(election),
		"--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", m.peer, "--initial-advertise-peer-urls", m.peer,
		"--initial-cluster", peers, "--initial-cluster-state", "new", "--bcrypt-cost", "4",
	}
	if c.options.TLS {
		flags = append(flags, "--client-cert-auth", "--trusted-ca-file", c.Files.CA, "--cert-file", c.Files.ServerCert, "--key-file", c.Files.ServerKey)
	}
	if c.options.TokenTTL != 0 {
		flags = append(flags, "--auth-token-ttl", fmt.Sprint(int(c.options.TokenTTL.Seconds())))
	}
	return append(flags, c.options.Flags...)
}

func (c *Cluster) scheme() string {
	if c.options.TLS {
		return "https://"
	}
	return "http://"
}

// Endpoints returns the URLs of the members.
func (c *Cluster) Endpoints() []string {
	var urls []string
	for _, m := range c.Members {
		urls = append(urls, c.scheme()+m.client)
	}
	return urls
}

// URL returns the URL for clients of the member or relay with the address addr.
func (c *Cluster) URL(addr string) string { return c.scheme() + addr }

// serves reports whether the member answers and knows a leader.
func (c *Cluster) serves(m *Member) bool {
	client := c.client(c.scheme()+m.client, "", "")
	defer closeClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	status, err := client.Status(ctx, c.scheme()+m.client)
	return err == nil && status.Leader != 0
}

// Client returns a client with all permissions. It is closed when the test ends.
func (c *Cluster) Client() *clientv3.Client {
	c.t.Helper()
	client := c.root()
	c.t.Cleanup(func() { closeClient(client) })
	return client
}

// root returns a client with all permissions, which the caller must close.
func (c *Cluster) root() *clientv3.Client {
	c.t.Helper()
	if c.password == "" {
		return c.client("", "", "")
	}
	return c.client("", "root", c.password)
}

// client returns a client for an endpoint. With authentication it waits until the cluster has a
// leader.
func (c *Cluster) client(endpoint, user, password string) (client *clientv3.Client) {
	c.t.Helper()
	wait.For(c.t, wait.Patience, "a client of etcd", func() bool {
		var err error
		client, err = c.connect(endpoint, user, password)
		return err == nil
	})
	return client
}

func (c *Cluster) connect(endpoint, user, password string) (*clientv3.Client, error) {
	endpoints := c.Endpoints()
	if endpoint != "" {
		endpoints = []string{endpoint}
	}
	config := clientv3.Config{Endpoints: endpoints, DialTimeout: wait.Patience, Username: user, Password: password, Logger: zap.NewNop()}
	if c.options.TLS {
		config.TLS = &tls.Config{RootCAs: c.Files.pool, Certificates: []tls.Certificate{c.Files.client}, MinVersion: tls.VersionTLS12}
	}
	return clientv3.New(config)
}

func closeClient(client *clientv3.Client) {
	_ = client.Close() // the server may have exited
}

// do runs one operation as root, and fails the test if it does not succeed in time.
func (c *Cluster) do(what string, operation func(context.Context, *clientv3.Client) error) {
	c.t.Helper()
	client := c.root()
	defer closeClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), wait.Patience)
	defer cancel()
	if err := operation(ctx, client); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// retryUntilDone retries an operation until etcd accepts it or reports that it is already done.
// During an election, which a busy machine may cause at any time, etcd refuses writes or leaves
// their outcome open.
func retryUntilDone(ctx context.Context, done error, do func() error) error {
	for {
		err := do()
		if done != nil && errors.Is(err, done) {
			return nil
		}
		e, ok := errors.AsType[rpctypes.EtcdError](err)
		if !ok || e.Code() != codes.Unavailable || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // retry interval
	}
}

// User is an etcd user and its permissions.
type User struct {
	Name, Password string
	// Read and Write are folders, which end in /, or single keys. Write permission includes read
	// permission.
	Read, Write []string
}

// EnableAuth enables authentication. After that, only users and root, which the kit uses, have
// access.
func (c *Cluster) EnableAuth(users ...User) {
	c.t.Helper()
	c.do("turning authentication on", func(ctx context.Context, client *clientv3.Client) error {
		err := addUser(ctx, client, User{Name: "root", Password: "root"})
		for _, u := range users {
			err = errors.Join(err, addUser(ctx, client, u))
		}
		return errors.Join(err, retryUntilDone(ctx, rpctypes.ErrUserEmpty, func() error { _, err := client.AuthEnable(ctx); return err }))
	})
	c.password = "root"
}

func addUser(ctx context.Context, client *clientv3.Client, u User) error {
	err := errors.Join(
		retryUntilDone(ctx, rpctypes.ErrRoleAlreadyExist, func() error { _, err := client.RoleAdd(ctx, u.Name); return err }),
		retryUntilDone(ctx, rpctypes.ErrUserAlreadyExist, func() error { _, err := client.UserAdd(ctx, u.Name, u.Password); return err }),
		retryUntilDone(ctx, nil, func() error { _, err := client.UserGrantRole(ctx, u.Name, u.Name); return err }))
	for _, key := range u.Read {
		err = errors.Join(err, grant(ctx, client, u.Name, key, clientv3.PermissionType(clientv3.PermRead)))
	}
	for _, key := range u.Write {
		err = errors.Join(err, grant(ctx, client, u.Name, key, clientv3.PermissionType(clientv3.PermReadWrite)))
	}
	return err
}

// grant gives a role a permission for a folder or a key.
func grant(ctx context.Context, client *clientv3.Client, role, key string, kind clientv3.PermissionType) error {
	return retryUntilDone(ctx, nil, func() error {
		_, err := client.RoleGrantPermission(ctx, role, key, end(key), kind)
		return err
	})
}

// end returns the end of a folder's key range, or "" for a single key.
func end(key string) string {
	if strings.HasSuffix(key, "/") {
		return clientv3.GetPrefixRangeEnd(key)
	}
	return ""
}

// Grant permits a user that EnableAuth created to read another folder, which ends in /, or another
// key.
func (c *Cluster) Grant(user, key string) {
	c.t.Helper()
	c.do("granting a right", func(ctx context.Context, client *clientv3.Client) error {
		return grant(ctx, client, user, key, clientv3.PermissionType(clientv3.PermRead))
	})
}

// Revoke revokes a permission that Grant gave.
func (c *Cluster) Revoke(user, key string) {
	c.t.Helper()
	c.do("revoking a right", func(ctx context.Context, client *clientv3.Client) error {
		return retryUntilDone(ctx, rpctypes.ErrPermissionNotGranted, func() error {
			_, err := client.RoleRevokePermission(ctx, user, key, end(key))
			return err
		})
	})
}

// freePorts returns addresses on host that nothing listens on.
func freePorts(t testing.TB, host string, n int) (addrs []string) {
	t.Helper()
	program.Unshared(func() {
		for range n {
			l, err := net.Listen("tcp", host+":0")
			if err != nil {
				t.Fatal(err)
			}
			addrs = append(addrs, l.Addr().String())
			defer func() { _ = l.Close() }() // keep each listener until all ports are found, so the ports differ
		}
	})
	return addrs
}

// Compact compacts all revisions before the current one, and returns the current one.
func (c *Cluster) Compact() int64 {
	c.t.Helper()
	var revision int64
	c.do("compacting", func(ctx context.Context, client *clientv3.Client) error {
		now, err := client.Get(ctx, "\x00")
		if err != nil {
			return err
		}
		revision = now.Header.Revision
		return retryUntilDone(ctx, rpctypes.ErrCompacted, func() error {
			_, err := client.Compact(ctx, revision, clientv3.WithCompactPhysical())
			return err
		})
	})
	return revision
}

// MoveLeader makes another member the leader.
func (c *Cluster) MoveLeader() {
	c.t.Helper()
	wait.For(c.t, wait.Patience, "another leader", func() bool {
		for _, endpoint := range c.Endpoints() {
			client := c.client(endpoint, "", "")
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			moved := moveFrom(ctx, client, endpoint)
			cancel()
			closeClient(client)
			if moved {
				return true
			}
		}
		return false
	})
}

// moveFrom transfers the leadership to another member if the member at endpoint is the leader. It
// reports whether it did.
func moveFrom(ctx context.Context, client *clientv3.Client, endpoint string) bool {
	status, err := client.Status(ctx, endpoint)
	if err != nil || status.Leader != status.Header.MemberId {
		return false
	}
	members, err := client.MemberList(ctx)
	if err != nil {
		return false
	}
	for _, m := range members.Members {
		if m.ID == status.Leader {
			continue
		}
		if _, err := client.MoveLeader(ctx, m.ID); err == nil {
			return true
		}
	}
	return false
}
