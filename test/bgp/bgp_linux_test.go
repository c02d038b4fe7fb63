package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

const (
	vip4 = "10.96.0.10"
	vip6 = "fd00:96::10"
)

// router is BIRD's configuration on the router, which passes learned routes to its kernel.
const router = `log stderr { fatal, bug, error };
router id 192.168.1.1;
protocol device { scan time 10; }
protocol bfd { interface "*" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }
protocol kernel { merge paths on; ipv4 { import none; export all; }; }
protocol kernel { merge paths on; ipv6 { import none; export all; }; }
protocol bgp host {
	local 192.168.1.1 as 65000;
	neighbor 192.168.1.11 as 65001;
	bfd on; passive on; hold time 9; keepalive time 3; graceful restart off; error wait time 1, 2;
	ipv4 { import all; export none; };
	ipv6 { import all; export none; };
}
`

// world is a host with vipd and a speaker, a router with clients of the VIPs, and a server.
type world struct {
	*lab.Lab
	t              *testing.T
	router, server *lab.NS
}

func newWorld(t *testing.T) *world {
	t.Helper()
	lab.Need(t, "bird")
	w := &world{Lab: lab.New(t), t: t}
	w.router, w.server = w.Add("router"), w.Add("server")
	w.Link(w.Host(), w.router, "192.168.1.11/24", "192.168.1.1/24", "fd01::11/64", "fd01::1/64")
	w.Link(w.Host(), w.server, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	w.start(w.router, "bird", "-f", "-c", w.file("router.conf", router), "-s", w.path("router.ctl"), "-P", w.path("router.pid"))
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.t.TempDir(), name) }

func (w *world) file(name, text string) string {
	w.t.Helper()
	path := w.path(name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// start runs a program until the test ends.
func (w *world) start(at *lab.NS, name string, args ...string) {
	w.t.Helper()
	cmd := at.Command(w.t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = w.t.Output(), w.t.Output()
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill() // the context may already have killed the process
		_ = cmd.Wait()
	})
}

// vipd starts a vipd that withdraws its VIPs while they have no usable endpoint. The returned
// function runs vipctl on the same host.
func (w *world) vipd() (vipctl func(args ...string)) {
	w.t.Helper()
	var l net.Listener
	if err := w.Host().Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }); err != nil {
		w.t.Fatal(err)
	}
	etcdkit.NewRelayOn(w.t, l, etcdkit.Start(w.t, etcdkit.Options{}).Members[0].Addr())
	dir := w.t.TempDir()
	conf := w.file("vipd.toml", fmt.Sprintf(`
node = "gw1"
mode = "userspace"
state_dir = %[1]q
run_dir = %[1]q
store.kind = "etcd"
etcd.endpoints = ["http://%[4]s"]
api.socket = "%[1]s/vipd.sock"
api.http = ""
[vips.%[2]q]
withdraw = "no_endpoint"
[vips.%[3]q]
withdraw = "no_endpoint"
[services.web]
vips = [%[2]q, %[3]q]
ports = [{ port = 80, target_port = 8080 }]
endpoints = [{ address = "10.2.0.2" }, { address = "fd02::2" }]
health = { type = "tcp", interval = "200ms", timeout = "150ms", fall = 1 }
`, dir, vip4, vip6, l.Addr()))
	w.start(w.Host(), filepath.Join(program.Bin(w.t), "vipd"), "--config", conf)
	return func(args ...string) {
		w.t.Helper()
		w.Host().Exec(filepath.Join(program.Bin(w.t), "vipctl"), append(args, "--config", conf)...)
	}
}

// serve starts a server for each address family. The returned function end stops both servers.
func (w *world) serve() (end func()) {
	w.t.Helper()
	four := w.server.Echo("tcp", "s1", netip.MustParseAddrPort("10.2.0.2:8080"))
	six := w.server.Echo("tcp", "s1", netip.MustParseAddrPort("[fd02::2]:8080"))
	return func() { four.Close(); six.Close() }
}

// waitForRoutes waits until the router has routes to the VIPs or, if want is false, has none. It
// returns how long that took.
func (w *world) waitForRoutes(want bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	lab.Eventually(w.t, 30*time.Second, fmt.Sprintf("routes to the VIPs: %t", want), func() error {
		routes := w.router.Exec("ip", "route") + w.router.Exec("ip", "-6", "route")
		for _, vip := range []string{vip4, vip6} {
			if has := strings.Contains(routes, vip+" "); has != want {
				return fmt.Errorf("route to %s exists = %t", vip, has)
			}
		}
		return nil
	})
	return time.Since(began)
}

// ask connects to both VIPs from the router until they answer. On a busy machine a check of vipd or
// BGP may be late, so routes may be missing for a moment.
func (w *world) ask() {
	w.t.Helper()
	for _, vip := range []string{vip4 + ":80", "[" + vip6 + "]:80"} {
		lab.Eventually(w.t, 30*time.Second, "an answer of "+vip, func() error {
			ctx, cancel := context.WithTimeout(w.t.Context(), wait.Scaled(10*time.Second))
			defer cancel()
			c, err := w.router.Dial(ctx, "tcp", vip)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			_, err = lab.Ask(c)
			return err
		})
	}
}

// recipe returns a file in examples/bgp. If the kernel has no dummy devices, vipd holds VIPs on lo.
func recipe(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples/bgp", name))
	if err != nil {
		t.Fatal(err)
	}
	trial := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "trial"}}
	if err := netlink.LinkAdd(trial); err != nil {
		return strings.NewReplacer("interface \"vipd0\"", "interface \"lo\"", "interface vipd0", "interface lo").Replace(string(text))
	}
	if err := netlink.LinkDel(trial); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRecipes runs each speaker. While an endpoint is usable and the host is not on standby, the
// router must have routes to the VIPs, and clients must be served. Otherwise the router must have
// no routes to the VIPs.
func TestRecipes(t *testing.T) {
	for _, speaker := range []struct {
		name  string
		start func(*world)
	}{{"bird", (*world).bird}, {"frr", (*world).frr}} {
		t.Run(speaker.name, func(t *testing.T) {
			w := newWorld(t)
			speaker.start(w)
			end := w.serve()
			vipctl := w.vipd()
			w.waitForRoutes(true)
			w.ask()
			vipctl("node", "standby", "gw1")
			t.Logf("from standby to the routes' end: %s", w.waitForRoutes(false).Round(time.Millisecond))
			vipctl("node", "resume", "gw1")
			w.waitForRoutes(true)
			w.ask()
			end()
			t.Logf("from the last endpoint's death to the routes' end: %s, of which a check takes up to 200 ms", w.waitForRoutes(false).Round(time.Millisecond))
			end = w.serve()
			t.Logf("from the endpoints' return to the routes' return: %s, of which two checks take up to 250 ms", w.waitForRoutes(true).Round(time.Millisecond))
			w.ask()
			end()
			w.waitForRoutes(false)
		})
	}
}

func (w *world) bird() {
	w.t.Helper()
	w.start(w.Host(), "bird", "-f", "-c", w.file("bird.conf", recipe(w.t, "bird.conf")), "-s", w.path("bird.ctl"), "-P", w.path("bird.pid"))
}

// frr starts the daemons that FRR's service starts.
func (w *world) frr() {
	w.t.Helper()
	const folder = "/usr/lib/frr/"
	for _, name := range []string{"zebra", "bgpd", "bfdd"} {
		if _, err := os.Stat(folder + name); err != nil {
			w.t.Skip("needs frr: apt-get install frr")
		}
	}
	const dir = "/run/frr" // the user frr must own this directory; /run belongs to the lab
	frr, err := user.Lookup("frr")
	if err != nil {
		w.t.Fatal(err)
	}
	id, err := strconv.Atoi(frr.Uid)
	if err := errors.Join(err, os.MkdirAll(dir, 0o755), os.Chown(dir, id, id)); err != nil {
		w.t.Fatal(err)
	}
	// Each daemon gets its part of the file, as in FRR's service.
	bgp, bfd, found := strings.Cut(recipe(w.t, "frr.conf"), "\nbfd\n")
	if !found {
		w.t.Fatal("frr.conf lacks the section bfd")
	}
	for _, d := range []struct{ name, conf string }{{"zebra", "!\n"}, {"bfdd", "bfd\n" + bfd}, {"bgpd", bgp + "\n"}} {
		name, conf := d.name, dir+"/"+d.name+".conf"
		if err := os.WriteFile(conf, []byte(d.conf), 0o644); err != nil {
			w.t.Fatal(err)
		}
		args := []string{"-f", conf, "-i", dir + "/" + name + ".pid", "-z", dir + "/zebra.sock", "--vty_socket", dir, "-P", "0", "--log", "stdout", "--log-level", "errors"}
		if name == "bfdd" {
			args = append(args, "--bfdctl", dir+"/bfdd.sock")
		}
		w.start(w.Host(), folder+name, args...)
		if name == "zebra" {
			lab.Eventually(w.t, 10*time.Second, "zebra's socket", func() error { _, err := os.Stat(dir + "/zebra.sock"); return err })
		}
	}
}
