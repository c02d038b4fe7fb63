package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/test/fake"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// rig is a dataplane on the host of a small network: a client on one side, a server with many addresses on the other.
type rig struct {
	*testing.T
	dir    string
	d      *Dataplane
	lab    *lab.Lab
	client *lab.NS
	server *lab.NS
	engine *dataplane.Engine
	stop   func()
	sets   int64
	others string // what ipvsadm says of others
}

// vip is the address of the frontends.
func vip() netip.Addr { return netip.MustParseAddr("10.96.0.10") }

// newRig is a rig with the sysctls that vipd sets, the VIP on lo, and an engine that carries nothing out yet.
func newRig(t *testing.T) *rig {
	t.Helper()
	lab.NeedIPVS(t)
	lab.Need(t, "ipvsadm", "iptables", "ip6tables")
	l := lab.New(t)
	r := &rig{T: t, dir: t.TempDir(), lab: l, client: l.Add("client"), server: l.Add("server")}
	l.Link(l.Host(), r.client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	l.Link(l.Host(), r.server, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	host := l.Host()
	host.Sysctl("net.ipv4.ip_forward", "1")
	host.Sysctl("net.ipv6.conf.all.forwarding", "1")
	for _, name := range []string{"conntrack", "expire_nodest_conn", "expire_quiescent_template"} {
		host.Sysctl("net.ipv4.vs."+name, "1")
	}
	for _, tool := range []string{"iptables", "ip6tables"} { // has the host track connections, as the guard does
		host.Exec(tool, "-w", "-A", "INPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
		host.Exec(tool, "-w", "-t", "nat", "-A", "POSTROUTING", "-m", "mark", "--mark", "0x4000", "-j", "MASQUERADE")
	}
	host.AddAddr("lo", vip().String()+"/32")
	r.client.Default("10.1.0.1", "fd01::1")
	r.server.Default("10.2.0.1", "fd02::1")
	for i := 3; i < 8; i++ {
		r.server.AddAddr("lo", fmt.Sprintf("10.2.0.%d/32", i))
		host.Route(fmt.Sprintf("10.2.0.%d/32", i), "10.2.0.2")
	}
	for i := 2; i < 8; i++ {
		for _, network := range []string{"tcp", "udp"} {
			r.server.Echo(network, fmt.Sprint("s", i), netip.AddrPortFrom(r.address(i), 8080))
		}
	}
	r.ipvsadm("-C") // what another test has left of others
	r.open()
	t.Cleanup(func() {
		r.stop()
		if err := r.d.Close(context.Background(), false); err != nil {
			t.Error("closing: ", err)
		}
		if left := r.table(); left != r.others {
			t.Errorf("left behind:\n%s", left)
		}
	})
	return r
}

// open begins a process.
func (r *rig) open() {
	r.Helper()
	d, err := New(context.Background(), Options{Log: slog.New(slog.NewTextHandler(r.Output(), nil)), RunDir: r.dir})
	if err != nil {
		r.Fatal(err)
	}
	r.d = d
	r.engine = dataplane.NewEngine(dataplane.Options{
		Dataplane: d, Host: fake.NoHost{}, Log: slog.New(slog.NewTextHandler(r.Output(), nil)), MinInterval: time.Millisecond,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.engine.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if cancel(); !stopped {
			<-ended
		}
		stopped = true
	}
}

// restart is a new process over what the last one has left.
func (r *rig) restart() {
	r.Helper()
	r.stop()
	if err := r.d.Close(context.Background(), true); err != nil {
		r.Fatal(err)
	}
	r.open()
}

// set returns when exactly these frontends are carried out.
func (r *rig) set(frontends ...*balancer.Frontend) {
	r.Helper()
	r.tell(frontends...)
	wait.For(r.T, 10*time.Second, "the engine to carry it out", func() bool {
		s := r.engine.Status()
		return s.Ready && s.Applied.Store == r.sets && len(s.Failing) == 0
	})
}

func (r *rig) tell(frontends ...*balancer.Frontend) {
	var d balancer.Desired
	for _, f := range frontends {
		d.Frontends = d.Frontends.Set(f.Key, f)
	}
	r.sets++
	d.Revision.Store = r.sets
	r.engine.Set(d)
}

func (r *rig) address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}) }

func (r *rig) backend(i int) netip.AddrPort { return netip.AddrPortFrom(r.address(i), 8080) }

// web is a frontend of the servers of these numbers.
func (r *rig) web(proto balancer.Protocol, servers ...int) *balancer.Frontend {
	f := &balancer.Frontend{
		Key: balancer.Key{Addr: vip(), Port: 80, Proto: proto}, Service: "web", Port: string(proto),
		Policy: balancer.Policy{Scheduler: balancer.RoundRobin, Forward: balancer.NATForward},
	}
	for _, i := range servers {
		f.Backends = append(f.Backends, balancer.Backend{Addr: r.backend(i), State: balancer.Active, Weight: 1})
	}
	return f
}

// with is a copy of f with the server of that number changed.
func (r *rig) with(f *balancer.Frontend, i int, change func(b *balancer.Backend)) *balancer.Frontend {
	g := *f
	g.Backends = slices.Clone(f.Backends)
	change(backendOf(&g, r.backend(i)))
	return &g
}

// dial makes a connection, and returns it and who answered.
func (r *rig) dial(proto balancer.Protocol) (net.Conn, string) {
	r.Helper()
	c, name, err := r.dialWithin(wait.Bound(0), proto)
	if err != nil {
		r.Fatal(err)
	}
	return c, name
}

// tryDial is dial where nobody is to answer.
func (r *rig) tryDial(proto balancer.Protocol) (net.Conn, string, error) {
	return r.dialWithin(wait.Scaled(time.Second), proto)
}

func (r *rig) dialWithin(within time.Duration, proto balancer.Protocol) (net.Conn, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c, err := r.client.Dial(ctx, string(proto), netip.AddrPortFrom(vip(), 80).String())
	if err != nil {
		return nil, "", err
	}
	r.Cleanup(func() { _ = c.Close() })
	answer, err := lab.Ask(c)
	return c, answer.Server, err
}

// alive echoes a line over a TCP connection.
func alive(c net.Conn) error { return aliveWithin(c, wait.Bound(0)) }

// ends waits until a TCP connection echoes nothing any more.
func (r *rig) ends(c net.Conn) {
	r.Helper()
	wait.For(r.T, 10*time.Second, "the connection to end", func() bool { return aliveWithin(c, wait.Scaled(500*time.Millisecond)) != nil })
}

func aliveWithin(c net.Conn, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x\n")); err != nil {
		return err
	}
	buf := make([]byte, 2)
	n, err := c.Read(buf)
	if err == nil && n == 0 {
		err = errors.New("nothing came")
	}
	return err
}

// table is what ipvsadm says there is.
func (r *rig) table() string {
	r.Helper()
	out, err := exec.Command("ipvsadm", "--save", "-n").CombinedOutput()
	if err != nil {
		r.Fatalf("ipvsadm --save: %v: %s", err, out)
	}
	return string(out)
}

func (r *rig) ipvsadm(args ...string) {
	r.Helper()
	if out, err := exec.Command("ipvsadm", args...).CombinedOutput(); err != nil {
		r.Fatalf("ipvsadm %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// weight is that of a destination in the kernel; -1 means it is not there.
func (r *rig) weight(f *balancer.Frontend, i int) int {
	r.Helper()
	all, err := r.d.conn.Destinations(context.Background(), f.Key)
	if err != nil && !errors.Is(err, ipvsnl.ErrNoService) {
		r.Fatal(err)
	}
	for _, s := range all {
		if s.Addr == r.backend(i) {
			return s.Weight
		}
	}
	return -1
}

// follows waits until a flow is answered by a server; "" means by nobody.
func (r *rig) follows(c net.Conn, want string) {
	r.Helper()
	got := ""
	wait.For(r.T, 10*time.Second, fmt.Sprintf("the flow to be answered by %q", want), func() bool {
		answer, err := lab.AskWithin(c, wait.Scaled(50*time.Millisecond))
		got = answer.Server
		return err == nil && got == want || err != nil && want == ""
	})
}
