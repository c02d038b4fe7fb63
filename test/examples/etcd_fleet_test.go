package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vipd/examples/process"
	"vipd/test/lab"
	"vipd/test/wait"
)

// testFleet runs vipd on the cluster with the configuration and the etcd users that ./users
// created. Operators and registrars must have the permissions that they need.
func (e *etcdExample) testFleet(t *testing.T) {
	lab.Require(t)
	lab.Need(t, "ip", "curl")
	e.do("./ctl del --prefix /vipd/")
	servers := filepath.Join(t.TempDir(), "echo")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", servers, "../../examples/echo").CombinedOutput(); err != nil {
		t.Fatalf("building the servers: %v\n%s", err, out)
	}
	for i, address := range []string{"192.168.1.11", "192.168.1.12"} {
		e.do("ip address add " + address + "/32 dev lo")
		t.Cleanup(func() { e.do("ip address del " + address + "/32 dev lo") })
		e.await(background(t, exec.Command(servers, "--name", fmt.Sprintf("s%d", i+1), "--http", address+":8080")), "serving")
	}
	e.await(background(t, exec.Command(servers, "--name", "registered", "--http", "192.168.1.12:8443")), "serving")

	ctl := e.host(t, "node-host1", "ann")
	e.follow("vipctl pool set default")
	e.follow("vipctl wait", ctl...)
	e.answers("10.96.0.10", "s1", "s2")
	if out := e.do("vipctl get nodes", ctl...); !strings.Contains(out, "host1") {
		t.Errorf("vipctl get nodes: output = %s, want this node", out)
	}
	api := strings.TrimSpace(e.do(`vipctl get services api -o json | jq -r '.[0].vips[0]'`, append(ctl, "VIPCTL_ETCD=")...))
	config := filepath.Join(e.out, "users", "api1", "vipd.toml")
	registrar := exec.Command(filepath.Join(e.bin, "vipctl"), "--config", config, "register", "api", "192.168.1.12:8443")
	p := background(t, registrar)
	e.await(p, "is registered")
	e.answers(api+":443", "registered")
	wait.For(t, wait.Patience, "the host to say what it has found", func() bool {
		return strings.Contains(e.do("./ctl get --prefix /vipd/health/host1/api/"), "/192.168.1.12:8443\n{")
	})
	wait.For(t, wait.Patience, "vipctl describe service api to tell of it", func() bool { // a busy machine may have been too slow once
		return strings.Contains(e.do("vipctl describe service api", ctl...), "1 of 1 nodes: connected (host1)")
	})
	if out, err := e.run("vipctl apply -f services.toml", "VIPCTL_CONFIG="+config); err == nil || !strings.Contains(out, "has no permission") {
		t.Errorf("error of apply as a registrar = %v, want permission denied\n%s", err, out)
	}
	if err := p.Stop(wait.Patience); err != nil {
		t.Error(err)
	}
	wait.For(t, wait.Patience, "the endpoint to go", func() bool {
		_, err := e.run("curl -sS -m 5 " + api + ":443")
		return err != nil
	})
}

// host starts vipd as a user that ./users created, until the test ends. It returns an operator's
// environment.
func (e *etcdExample) host(t *testing.T, user, operator string) []string {
	t.Helper()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(filepath.Join(e.out, "users", user))); err != nil {
		t.Fatal(err)
	}
	config, socket := filepath.Join(folder, "vipd.toml"), filepath.Join(folder, "run", "vipd.sock")
	text := strings.Replace(e.read(config), "#allowed_endpoints", "allowed_endpoints", 1) // the endpoints are on this host
	e.write(config, fmt.Sprintf("state_dir = %q\nrun_dir = %q\n%s\n[api]\nsocket = %q\nhttp = \"\"\n",
		filepath.Join(folder, "state"), filepath.Join(folder, "run"), text, socket))
	e.do("vipctl check " + config)
	p := background(t, exec.Command(filepath.Join(e.bin, "vipd"), "--config", config))
	t.Cleanup(func() {
		if err := p.Stop(wait.Patience); err != nil {
			t.Error(err)
		}
		e.do("vipctl --config " + config + " cleanup")
		password := strings.TrimSpace(e.read(filepath.Join(folder, "password")))
		if strings.Contains(p.Output(), password) {
			t.Error("vipd's log contains the password = true, want false")
		}
	})
	e.await(p, "the fleet sees this node")
	return []string{"VIPCTL_SOCKET=" + socket, "VIPCTL_CONFIG=" + filepath.Join(e.out, "users", operator, "vipd.toml")}
}

func (e *etcdExample) await(p *process.Process, text string) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), wait.Bound(0))
	defer cancel()
	if err := p.AwaitOutput(ctx, text); err != nil {
		e.t.Fatal(err)
	}
}

// answers polls an address until each server has answered.
func (e *etcdExample) answers(address string, servers ...string) {
	e.t.Helper()
	seen := map[string]bool{}
	wait.For(e.t, wait.Patience, fmt.Sprintf("answers of %v at %s", servers, address), func() bool {
		out, err := e.run("curl -sS -m 5 " + address)
		if name, _, ok := strings.Cut(out, " "); err == nil && ok {
			seen[name] = true
		}
		return len(seen) == len(servers)
	})
}
