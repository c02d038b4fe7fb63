package examples

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/examples/process"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// etcdExample is a cluster that the scripts in examples/etcd set up as in docs/fleet.md. It has
// three members on loopback addresses. Each member has the settings that it would have on its own
// host, except the directories.
type etcdExample struct {
	// t is the current subtest, and whole is the entire test.
	t, whole testing.TB
	// top represents /root in docs/fleet.md. folder is /root/etcd, a copy of the example, and out
	// is /root/vipd-etcd, the output of its scripts.
	top, folder, out string
	// network replaces 192.168.1 in the example.
	network string
	guide   *guide
	members []*etcdMember
	// bin is the directory that contains vipctl.
	bin string
}

type etcdMember struct {
	name, address string
	// settings is the path of the member's /etc/default/etcd, and data is its data directory.
	settings, data string
	running        *process.Process
}

// newEtcd creates the example's files for addresses of this machine. It does not start a member.
func newEtcd(t testing.TB) *etcdExample {
	t.Helper()
	lab.Need(t, "etcd", "etcdctl", "openssl", "jq")
	top := t.TempDir()
	e := &etcdExample{
		t: t, whole: t, top: top, folder: filepath.Join(top, "etcd"), out: filepath.Join(top, "vipd-etcd"), guide: readGuide(t),
		network: fmt.Sprintf("127.%d.%d", 16+rand.IntN(200), rand.IntN(256)), bin: program.Bin(t),
	}
	e.follow("editor cluster.conf")
	for i := range 3 {
		e.join(fmt.Sprintf("etcd%d", i+1), fmt.Sprintf("%s.%d", e.network, 21+i))
	}
	return e
}

// join adds a member to e. The scripts have already created the member's files.
func (e *etcdExample) join(name, address string) *etcdMember {
	e.t.Helper()
	m := &etcdMember{name: name, address: address, settings: filepath.Join(e.top, address+".default"), data: filepath.Join(e.top, address)}
	e.install(m)
	e.members = append(e.members, m)
	return m
}

// install installs a member's settings.
func (e *etcdExample) install(m *etcdMember) {
	e.t.Helper()
	folder := filepath.Join(e.out, "members", m.name)
	text := e.read(filepath.Join(folder, "etcd.default"))
	for old, new := range map[string]string{"/etc/etcd/": folder + "/", "/var/lib/etcd/vipd": m.data, "http://127.0.0.1:": "http://" + m.address + ":"} {
		if !strings.Contains(text, old) {
			e.t.Fatalf("etcd.default lacks %s", old)
		}
		text = strings.ReplaceAll(text, old, new)
	}
	// Members on one machine connect from 127.0.0.1, whatever address they listen on. The long
	// heartbeat and election timeouts are for a busy machine.
	e.write(m.settings, text+"ETCD_EXPERIMENTAL_PEER_SKIP_CLIENT_SAN_VERIFICATION=true\nETCD_HEARTBEAT_INTERVAL=200\nETCD_ELECTION_TIMEOUT=2000\n")
}

// follow runs the operator's block in docs/fleet.md that contains text, with additional environment
// variables. It returns the output.
func (e *etcdExample) follow(text string, env ...string) string {
	e.t.Helper()
	return e.do(e.here(e.guide.block(e.t, "operator", text)), env...)
}

// here adapts commands in docs/fleet.md to this machine.
func (e *etcdExample) here(commands string) string {
	top, err := filepath.Abs("../..")
	if err != nil {
		e.t.Fatal(err)
	}
	commands = strings.NewReplacer("/root", e.top, "192.168.1.2", e.network+".2", "192.168.1.3", e.network+".3", "--timeout 30s", "--timeout 2m", "cp -r examples/", "cp -r "+top+"/examples/").Replace(commands)
	return fmt.Sprintf("editor() { sed -i 's/192.168.1/%s/g' $1; }\n%s", e.network, commands)
}

func (e *etcdExample) read(path string) string {
	e.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(text)
}

func (e *etcdExample) write(path, text string) {
	e.t.Helper()
	info, err := os.Stat(path)
	mode := os.FileMode(0o600)
	if err == nil {
		mode = info.Mode().Perm()
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		e.t.Fatal(err)
	}
}

// run runs a command line in the example's directory, with additional environment variables, and
// returns its output. On a busy machine etcd may lose its leader, so run retries, which etcdctl
// does not do.
func (e *etcdExample) run(line string, env ...string) (out string, err error) {
	for range 5 {
		out, err = e.try(line, env...)
		if err == nil || !strings.Contains(out, "deadline exceeded") && !strings.Contains(out, "request timed out") && !strings.Contains(out, "leader changed") {
			break
		}
	}
	return out, err
}

func (e *etcdExample) try(line string, env ...string) (string, error) {
	ctx, cancel := context.WithTimeout(e.t.Context(), wait.Scaled(2*time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", line)
	cmd.Dir = e.top
	if _, err := os.Stat(e.folder); err == nil {
		cmd.Dir = e.folder
	}
	cmd.Env = append(append(os.Environ(), "ETCDCTL_DIAL_TIMEOUT=10s", "ETCDCTL_COMMAND_TIMEOUT=1m", "OUT="+e.out, "PATH="+e.bin+":"+os.Getenv("PATH")), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", line, err, out)
	}
	return string(out), err
}

func (e *etcdExample) do(line string, env ...string) string {
	e.t.Helper()
	out, err := e.run(line, env...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// start starts members like Debian's unit, with their settings, and waits until each is healthy.
func (e *etcdExample) start(members ...*etcdMember) {
	e.t.Helper()
	for _, m := range members {
		cmd := exec.Command("etcd")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		lines := bufio.NewScanner(strings.NewReader(e.read(m.settings)))
		for lines.Scan() {
			if setting := lines.Text(); setting != "" && !strings.HasPrefix(setting, "#") {
				cmd.Env = append(cmd.Env, setting)
			}
		}
		m.running = background(e.whole, cmd)
	}
	for _, m := range members {
		ctx, cancel := context.WithTimeout(e.t.Context(), wait.Bound(0))
		defer cancel()
		if err := m.running.Await(ctx, func() error { return healthy("http://" + m.address + ":2381/health") }); err != nil {
			e.t.Fatal(err)
		}
		if _, complaint, ok := strings.Cut(m.running.Output(), "unrecognized environment variable"); ok {
			e.t.Errorf("etcd: log = %.100s, want no message about a rejected setting", complaint)
		}
	}
}

func background(t testing.TB, cmd *exec.Cmd) *process.Process {
	t.Helper()
	p, err := process.Start(nil, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			out := p.Output()
			t.Logf("%s printed last:\n%s", cmd.Path, out[max(0, len(out)-4000):])
		}
	})
	return p
}

func healthy(url string) error {
	answer, err := http.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || !strings.Contains(string(text), `"true"`)) {
		err = fmt.Errorf("%s says %s: %s", url, answer.Status, text)
	}
	return err
}

// as returns an environment that makes etcdctl act as a user.
func (e *etcdExample) as(user string) []string {
	folder := filepath.Join(e.out, "users", user)
	var urls []string
	for _, m := range e.members {
		urls = append(urls, "https://"+m.address+":2379")
	}
	return []string{
		"ETCDCTL_API=3", "ETCDCTL_ENDPOINTS=" + strings.Join(urls, ","), "ETCDCTL_CACERT=" + folder + "/ca.crt",
		"ETCDCTL_CERT=" + folder + "/client.crt", "ETCDCTL_KEY=" + folder + "/client.key",
		"ETCDCTL_USER=" + user, "ETCDCTL_PASSWORD=" + strings.TrimSpace(e.read(folder+"/password")),
	}
}

// only returns an etcdctl option that selects a single member.
func (e *etcdExample) only(member int) string {
	return "ETCDCTL_ENDPOINTS=https://" + e.members[member].address + ":2379"
}

// TestEtcd sets up a cluster as in docs/fleet.md. Each user must have exactly the documented
// permissions, and the documented procedures must work.
func TestEtcd(t *testing.T) {
	e := newEtcd(t)
	e.start(e.members...)
	e.follow("./users init")
	e.do("./users node host1") // running the command again changes nothing
	e.do("./users node host2.example.com && ./users viewer vic && ./users drainer deploy && ./users registrar api1 api && ./users registrar many web dns && ./users waiter many")
	parts := []struct {
		name string
		run  func(*testing.T)
	}{
		{"rights", e.testRights}, {"readers", e.testReaders}, {"strangers", e.testStrangers}, {"files", e.testFiles}, {"member lost", e.testMemberLost},
		{"removed user", e.testRemovedUser}, {"new secrets", e.testNewSecrets}, {"proxy", e.testProxy}, {"fleet", e.testFleet},
		{"member replaced", e.testMemberReplaced}, {"restore", e.testRestore},
	}
	ran := 0
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			e.t = t
			defer func() { e.t = e.whole }()
			part.run(t)
			ran++
		})
	}
	if ran == len(parts) { // with -run, some parts don't run
		e.guide.finished(t, "operator")
	}
}

// testRights tries the allowed and the forbidden operations of each user.
func (e *etcdExample) testRights(t *testing.T) {
	e.do(`./ctl put /vipd/services/web '{}' && ./ctl put /vipd/endpoints/api/other '{}' && ./ctl put /vipd/pools/default '{}'`)
	for user, rights := range map[string]struct{ yes, no []string }{
		"node-host1": {
			[]string{
				"get --prefix /vipd/services/", "get --prefix /vipd/endpoints/", "get --prefix /vipd/overrides/", "get --prefix /vipd/vips/",
				"get /vipd/nodes/host1/config", "put /vipd/nodes/host1/live 1", "put /vipd/nodes/host1/status 1", "get /vipd/nodes/host1/live", "lease grant 60",
				"get --prefix /vipd/health/", "get --prefix /vipd/history/", "put /vipd/health/host1/live {}", "put /vipd/health/host1/web/a {}", "del --prefix /vipd/health/host1/",
			},
			[]string{
				"put /vipd/services/web x", "del /vipd/services/web", "put /vipd/endpoints/web/a x", "put /vipd/overrides/web/a x", "put /vipd/vips/10.96.0.1 x",
				"put /vipd/nodes/host1/config x", "put /vipd/nodes/host2.example.com/status x", "get --prefix /vipd/nodes/", "get /vipd/nodes/host2.example.com/config",
				"put /vipd/pools/default x", "put /vipd/history/web/1 x", "get --prefix /vipd/", "get --prefix /", "put /other x", "user list", "role add mine", "auth disable",
				"snapshot save /dev/null", "put /vipd/health/host2.example.com/live x", "put /vipd/health/host1 x", "put /vipd/health/host10/live x",
			},
		},
		"node-host2.example.com": {
			[]string{"put /vipd/nodes/host2.example.com/status 1", "get /vipd/nodes/host2.example.com/config"},
			[]string{"put /vipd/nodes/host1/status x", "put /vipd/nodes/host2/status x"},
		},
		"ann": {
			[]string{"put /vipd/services/dns {}", "put /vipd/nodes/host1/config {}", "put /vipd/pools/default {}", "del --prefix /vipd/endpoints/api/", "get --prefix /vipd/"},
			[]string{"put /vipdx x", "put /other x", "get --prefix /", "user list", "user add x:y", "auth disable", "role grant-permission viewer readwrite /"},
		},
		"vic": {readable(), append(unreadable(), "put /vipd/services/web x", "put /vipd/overrides/web/a x", "del /vipd/services/web")},
		"deploy": {
			append(readable(), "put /vipd/overrides/web/a {}", "del /vipd/overrides/web/a"),
			append(unreadable(), "put /vipd/services/web x", "put /vipd/endpoints/web/a x", "put /vipd/ownership/vips/10.96.0.1 x"),
		},
		"api1": {
			[]string{"put /vipd/endpoints/api/1 {}", "get --prefix /vipd/endpoints/api/", "del /vipd/endpoints/api/1", "lease grant 60", "get /vipd/services/api"},
			[]string{
				"put /vipd/endpoints/web/1 x", "put /vipd/endpoints/api2/1 x", "put /vipd/endpoints/api x", "get --prefix /vipd/endpoints/", "put /vipd/services/api x",
				"get /vipd/services/web", "get --prefix /vipd/services/api", "put /vipd/overrides/api/1 x", "get --prefix /vipd/nodes/",
			},
		},
		"many": {[]string{"put /vipd/endpoints/web/1 {}", "put /vipd/endpoints/dns/1 {}", "get --prefix /vipd/nodes/"}, []string{"put /vipd/endpoints/api/1 x", "put /vipd/nodes/host1/status x"}},
	} {
		t.Run(user, func(t *testing.T) {
			for _, command := range rights.yes {
				if out, err := e.run("etcdctl "+command, e.as(user)...); err != nil {
					t.Errorf("error as %s = %v, want none\n%s", user, err, out)
				}
			}
			for _, command := range rights.no {
				if out, err := e.run("etcdctl "+command, append(e.as(user), e.only(0))...); err == nil || !strings.Contains(out, "permission denied") {
					t.Errorf("%s: etcdctl %s: error = %v, want permission denied; output:\n%s", user, command, err, out)
				}
			}
		})
	}
}

// readable returns commands of a user that may read all of vipd's keys except the heartbeat key,
// and unreadable returns commands that read that key.
func readable() (commands []string) {
	for _, folder := range []string{"services", "endpoints", "overrides", "vips", "pools", "health", "history", "nodes", "claims"} {
		commands = append(commands, "get --prefix /vipd/"+folder+"/")
	}
	for _, folder := range []string{"nodes", "sessions", "vips", "moves", "fenced", "policy"} {
		commands = append(commands, "get --prefix /vipd/ownership/"+folder+"/")
	}
	return commands
}

func unreadable() []string {
	return []string{"get /vipd/ownership/key", "get --prefix /vipd/ownership/k", "get --prefix /vipd/ownership/", "get --prefix /vipd/", "get --prefix /"}
}

// testReaders permits readers to read the heartbeat key, as earlier versions of the example did.
// Running ./users again must revoke that permission. After an operator has replaced the key,
// readers must still see the owners of VIPs.
func (e *etcdExample) testReaders(t *testing.T) {
	const secret = "/vipd/ownership/key"
	e.do(`./ctl put ` + secret + ` '{"key":"c2VjcmV0"}' && ./ctl put /vipd/ownership/vips/10.96.0.1 '{"node":"host1"}' && ./ctl del --prefix /vipd/services/`)
	e.do("vipctl apply -f - --config $OUT/users/ann/vipd.toml <<<'services.web = { vips = [\"10.96.0.20\"], ports = [{ port = 80 }], endpoints = [{ address = \"192.168.1.11\" }] }'")
	users := []string{"vic", "deploy"}
	e.do("for role in viewer drainer; do ./ctl role grant-permission $role read --prefix=true /vipd/; done")
	for _, user := range users {
		if out := e.do("etcdctl get "+secret, e.as(user)...); !strings.Contains(out, "c2VjcmV0") {
			t.Fatalf("%s with the earlier permission: output = %s, want the heartbeat key", user, out)
		}
	}
	e.do("./users viewer vic && ./users drainer deploy")
	ctl := func(user, command string) (string, error) {
		return e.run("vipctl " + command + " --config $OUT/users/" + user + "/vipd.toml")
	}
	for _, user := range users {
		for _, command := range unreadable() {
			if out, err := e.run("etcdctl "+command, append(e.as(user), e.only(0))...); err == nil || !strings.Contains(out, "permission denied") {
				t.Errorf("%s: etcdctl %s: error = %v, want permission denied; output:\n%s", user, command, err, out)
			}
		}
		if out, err := ctl(user, "get vips"); !strings.Contains(out, "10.96.0.1") {
			t.Errorf("%s: vipctl get vips: %v\n%s", user, err, out)
		}
		for _, command := range []string{"get nodes", "export", "history web", "pool get", "diff -f - <<<'services.web = { vips = [\"10.96.0.20\"], ports = [{ port = 80 }], endpoints = [{ address = \"192.168.1.11\" }] }'"} {
			if out, err := ctl(user, command); err != nil {
				t.Errorf("%s: vipctl %s: %v\n%s", user, command, err, out)
			}
		}
		if out, err := ctl(user, "ownership rekey"); err == nil || !strings.Contains(out, "may not") {
			t.Errorf("%s: vipctl ownership rekey: error = %v, want permission denied\n%s", user, err, out)
		}
	}
	if out, err := ctl("ann", "ownership rekey"); err != nil {
		t.Errorf("vipctl ownership rekey: %v\n%s", err, out)
	}
	if out := e.do("./ctl get " + secret); strings.Contains(out, "c2VjcmV0") || !strings.Contains(out, `"key"`) {
		t.Errorf("key after vipctl ownership rekey =\n%s\nwant another key", out)
	}
	e.do("./ctl del --prefix /vipd/ownership/ && ./ctl del /vipd/services/web")
}

// testStrangers checks that neither a certificate alone nor a wrong password gives access, and that
// a client can't act as a member.
func (e *etcdExample) testStrangers(t *testing.T) {
	nameless := e.as("ann")[:5]
	if out, err := e.run("etcdctl get /vipd/services/web", nameless...); err == nil || !strings.Contains(out, "user name is empty") && !strings.Contains(out, "permission denied") {
		t.Errorf("with a certificate and no name: error = %v, want a refusal\n%s", err, out)
	}
	if out, err := e.run("etcdctl get /vipd/services/web", append(e.as("ann"), "ETCDCTL_PASSWORD=guess")...); err == nil || !strings.Contains(out, "invalid user ID or password") {
		t.Errorf("with a wrong password: error = %v, want a refusal\n%s", err, out)
	}
	user, member := filepath.Join(e.out, "users", "ann"), e.members[0]
	tls := func(port, ca, certificate string) string {
		return fmt.Sprintf("timeout 60 openssl s_client -brief -connect %s:%s -verify_return_error -CAfile %s %s </dev/null; ", member.address, port, ca, certificate)
	}
	peer := filepath.Join(e.out, "members", "etcd2", "peer")
	for name, test := range map[string]struct {
		line string
		ok   bool
	}{
		"client":                         {tls("2379", user+"/ca.crt", "-cert "+user+"/client.crt -key "+user+"/client.key"), true},
		"client without a certificate":   {tls("2379", user+"/ca.crt", ""), false},
		"member":                         {tls("2380", e.out+"/peer-ca.crt", "-cert "+peer+".crt -key "+peer+".key"), true},
		"client as a member":             {tls("2380", e.out+"/peer-ca.crt", "-cert "+user+"/client.crt -key "+user+"/client.key"), false},
		"server of another authority":    {tls("2379", e.out+"/peer-ca.crt", "-cert "+user+"/client.crt -key "+user+"/client.key"), false},
		"member's certificate as user's": {tls("2379", user+"/ca.crt", "-cert "+peer+".crt -key "+peer+".key"), false},
	} {
		// With TLS 1.3, the client's handshake succeeds before the server's refusal arrives.
		out, err := e.run(strings.Replace(test.line, "openssl s_client", "openssl s_client -tls1_2", 1))
		if (err == nil) != test.ok {
			t.Errorf("%s: error = %v, want success = %t\n%s", name, err, test.ok, out)
		}
	}
}

// testFiles checks that only their owner can read the files that the scripts create, and that every
// certificate expires.
func (e *etcdExample) testFiles(t *testing.T) {
	err := filepath.WalkDir(e.out, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: mode = %v, want permissions only for the owner", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for file, authority := range map[string]string{"members/etcd1/server.crt": "ca.crt", "members/etcd1/peer.crt": "peer-ca.crt", "users/ann/client.crt": "ca.crt"} {
		e.do("openssl verify -x509_strict -CAfile $OUT/" + authority + " $OUT/" + file)
		out := e.do("openssl x509 -noout -subject -in $OUT/" + file)
		if strings.Contains(out, "CN") {
			t.Errorf("subject of %s = %s, want no CN, which etcd would use as a user", file, out)
		}
	}
}

// testMemberLost kills a member and restarts it. The other two must continue to serve, and the
// restarted member must have the current data.
func (e *etcdExample) testMemberLost(t *testing.T) {
	e.members[0].running.Kill()
	e.do("etcdctl put /vipd/services/meanwhile {}", e.as("ann")...)
	e.start(e.members[0])
	out := e.do("./ctl get --consistency s /vipd/services/meanwhile", e.only(0))
	if !strings.Contains(out, "{}") {
		t.Errorf("value at the restored member = %q, want the last value written", out)
	}
	if out := e.do("./ctl endpoint health"); strings.Count(out, "is healthy") != 3 {
		t.Errorf("./ctl endpoint health: output = %s, want all members healthy", out)
	}
}

// testRemovedUser removes a user. The user must no longer have access.
func (e *etcdExample) testRemovedUser(t *testing.T) {
	e.do("./users operator gone")
	env := append(e.as("gone"), e.as("ann")[2:5]...) // the removed user still has a valid certificate
	e.do("etcdctl get --prefix /vipd/", env...)
	e.do("./users remove gone && ./users node away && ./users remove node-away")
	if out, err := e.run("etcdctl get --prefix /vipd/", env...); err == nil || !strings.Contains(out, "invalid user ID or password") {
		t.Errorf("etcdctl get of a removed user = %v, want an error about its password:\n%s", err, out)
	}
	if out := e.do("./ctl role list"); strings.Contains(out, "node-away") {
		t.Errorf("roles = %s, want the user's role removed", out)
	}
}

// testNewSecrets replaces a password and certificates. Only the new secrets may be accepted.
func (e *etcdExample) testNewSecrets(t *testing.T) {
	old := e.as("vic")
	e.do("./users password vic && rm $OUT/users/vic/client.crt $OUT/members/etcd1/server.crt && ./users viewer vic && ./members")
	if out, err := e.run("etcdctl get --prefix /vipd/services/", old...); err == nil || !strings.Contains(out, "invalid user ID or password") {
		t.Errorf("with the old password: error = %v, want a refusal\n%s", err, out)
	}
	e.do("etcdctl get --prefix /vipd/services/", append(e.as("vic"), e.only(0))...)
	serial := func(command string) string {
		out := e.do(command)
		_, out, _ = strings.Cut(out, "serial=")
		return strings.TrimSpace(out)
	}
	served := serial("openssl s_client -connect " + e.members[0].address + ":2379 -cert $OUT/users/vic/client.crt -key $OUT/users/vic/client.key </dev/null 2>&1 | openssl x509 -noout -serial")
	if file := serial("openssl x509 -noout -serial -in $OUT/members/etcd1/server.crt"); served != file || served == "" {
		t.Errorf("etcd's certificate = %q, want %q from its file", served, file)
	}
}

// testProxy runs the command in the proxy's unit, and connects users through the proxy. The users
// must have the same permissions as without the proxy.
func (e *etcdExample) testProxy(t *testing.T) {
	e.follow("./users proxy")
	folder := filepath.Join(e.out, "users", "proxy1")
	_, command, _ := strings.Cut(e.read(filepath.Join(e.folder, "etcd-proxy.service")), "\nExecStart=")
	command, _, _ = strings.Cut(command, "\nRestart=")
	address := e.network + ".31"
	line := strings.NewReplacer("/etc/etcd-proxy/", folder+"/", "http://127.0.0.1:", "http://"+address+":").Replace(command)
	cmd := exec.Command("bash", "-c", "set -a; . "+folder+"/environment; exec "+line)
	cmd.Dir = t.TempDir()
	p := background(t, cmd)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Bound(0))
	defer cancel()
	through := func(user string) []string { return append(e.as(user), "ETCDCTL_ENDPOINTS=https://"+address+":2379") }
	if err := p.Await(ctx, func() error { _, err := e.run("etcdctl get --prefix /vipd/services/", through("vic")...); return err }); err != nil {
		t.Fatal(err)
	}
	e.do("etcdctl put /vipd/nodes/host1/status 1 && etcdctl get --prefix /vipd/services/", through("node-host1")...)
	for user, command := range map[string]string{"vic": "put /vipd/services/web x", "node-host1": "put /vipd/nodes/host2.example.com/status x", "api1": "put /vipd/endpoints/web/1 x"} {
		if out, err := e.run("etcdctl "+command, through(user)...); err == nil || !strings.Contains(out, "permission denied") {
			t.Errorf("%[2]s as %[1]s through a proxy: error = %[3]v, want permission denied\n%[4]s", user, command, err, out)
		}
	}
	if out, err := e.run("etcdctl get --prefix /vipd/", through("ann")[:5]...); err == nil {
		t.Errorf("output without a user through a proxy = %s, want a refusal", out)
	}
	if out, err := e.run(fmt.Sprintf("timeout 60 openssl s_client -tls1_2 -brief -connect %s:2379 -verify_return_error -CAfile $OUT/ca.crt </dev/null", address)); err == nil {
		t.Errorf("without a client certificate: openssl = %s, want the proxy to refuse it", out)
	}
}

// testMemberReplaced moves the third member to another address. All members must then be healthy.
func (e *etcdExample) testMemberReplaced(t *testing.T) {
	old := e.members[2]
	e.follow("./ctl member remove")
	old.running.Kill()
	e.members = e.members[:2]
	m := e.join("etcd3", e.network+".24")
	e.write(m.settings, strings.Replace(e.read(m.settings), "CLUSTER_STATE=new", "CLUSTER_STATE=existing", 1))
	e.start(m)
	e.do("etcdctl put /vipd/services/three {}", e.as("ann")...)
	if out := e.do("./ctl endpoint health"); strings.Count(out, "is healthy") != 3 || !strings.Contains(out, m.address) {
		t.Errorf("./ctl endpoint health: output = %s, want all members healthy", out)
	}
	for _, m := range e.members { // the restore creates a cluster of these members
		e.install(m)
	}
}

// testRestore saves a snapshot, deletes all data, and restores the snapshot. All data, including
// users, must exist again. A member that was not restored must not join.
func (e *etcdExample) testRestore(t *testing.T) {
	e.do("etcdctl put /vipd/services/kept {}", e.as("ann")...)
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	e.members[0].running.Kill() // the next member provides the snapshot
	e.follow("./backup")
	e.do("cp $OUT/today.db " + snapshot)
	e.do("etcdctl put /vipd/services/later {}", e.as("ann")...)
	for _, m := range e.members {
		m.running.Kill()
	}
	for _, m := range e.members {
		e.do("./restore "+snapshot, "DEFAULTS="+m.settings)
	}
	e.start(e.members...)
	out := e.do("etcdctl get --prefix /vipd/services/", e.as("vic")...)
	if !strings.Contains(out, "/vipd/services/kept") || strings.Contains(out, "/vipd/services/later") {
		t.Errorf("keys after the restore =\n%s\nwant the saved keys", out)
	}
	if out, err := e.run("etcdctl put /vipd/services/kept x", e.as("vic")...); err == nil {
		t.Errorf("viewer's write after the restore: output = %s, want permission denied", out)
	}
	e.do("etcdctl put /vipd/services/kept '{}'", e.as("ann")...)
}
