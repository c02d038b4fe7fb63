package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// testFleet runs command lines in this process, against a real etcd.
type testFleet struct {
	t       *testing.T
	cluster *etcdkit.Cluster
	// flags are added to each command line.
	flags []string
}

func newFleet(t *testing.T, o etcdkit.Options) *testFleet {
	t.Helper()
	f := &testFleet{t: t, cluster: etcdkit.Start(t, o)}
	empty := filepath.Join(t.TempDir(), "vipd.toml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.flags = []string{"--config", empty, "--etcd", strings.Join(f.cluster.Endpoints(), ",")}
	return f
}

// run runs a command line in this process. operator is the user's name.
func (f *testFleet) run(ctx context.Context, operator string, line ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	w := cli.World{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err, Now: time.Now,
		Getenv: func(name string) string { return map[string]string{"SUDO_USER": operator}[name] },
	}
	code = run(ctx, w, append(append([]string{}, line...), f.flags...))
	return code, out.String(), err.String()
}

// process is like run, but runs vipctl in a new process. TestMain has added this vipctl to PATH.
func (f *testFleet) process(operator string, line ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	cmd := exec.Command("vipctl", append(append([]string{}, line...), f.flags...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "SUDO_USER="+operator, "GORACE=atexit_sleep_ms=0")
	if err := cmd.Run(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			f.t.Errorf("running %q: error = %v, want none", line, err)
			return cli.ExitFailed, "", ""
		}
		code = exit.ExitCode()
	}
	return code, out.String(), errs.String()
}

// do runs a command line, checks its exit code, and returns its output.
func (f *testFleet) do(want int, line ...string) string {
	f.t.Helper()
	code, stdout, stderr := f.run(f.t.Context(), "ana", line...)
	if code == cli.ExitFailed && want == cli.ExitDone && strings.Contains(stderr, "request timed out; ") { // etcd waited for the disk: retry, as the message says
		code, stdout, stderr = f.run(f.t.Context(), "ana", line...)
	}
	if code != want {
		f.t.Fatalf("%q: exit code = %d, want %d:\n%s%s", line, code, want, stdout, stderr)
	}
	return stdout
}

func (f *testFleet) writer(t *testing.T) *etcd.Store {
	t.Helper()
	w, err := etcd.NewStore(client.Config{Endpoints: f.cluster.Endpoints(), Prefix: "/vipd"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func (f *testFleet) etcdRevision(t *testing.T) int64 {
	t.Helper()
	answer, err := f.cluster.Client().Get(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	return answer.Header.Revision
}

// file writes text to a new file, and returns the path.
func (f *testFleet) file(text string) string {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "services.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return file
}

func serviceText(name, vip string, port int) string {
	return fmt.Sprintf("[services.%s]\nvips = [%q]\nports = [{ port = %d }]\n", name, vip, port)
}

// TestParallelApplies makes 20 operators apply one service at once. The history must contain
// exactly the versions whose apply succeeded. Each operator whose apply failed must get an error
// that names a faster operator.
func TestParallelApplies(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("web", "10.96.0.10", 1000)))
	type outcome struct {
		code           int
		stdout, stderr string
	}
	outcomes := make([]outcome, 20)
	files := make([]string, len(outcomes))
	for i := range outcomes {
		files[i] = f.file(serviceText("web", "10.96.0.10", 1001+i))
	}
	var running sync.WaitGroup
	for i := range outcomes {
		running.Go(func() {
			code, stdout, stderr := f.process(fmt.Sprintf("op%d", i), "apply", "-f", files[i], "-o", "json")
			outcomes[i] = outcome{code, stdout, stderr}
		})
	}
	running.Wait()
	acknowledged := map[string]int64{} // revisions by operator
	for i, o := range outcomes {
		var result editResult
		if err := json.Unmarshal([]byte(o.stdout), &result); err != nil || len(result.Services) != 1 {
			t.Fatalf("operator %d: error = %v, want none: %s%s", i, err, o.stdout, o.stderr)
		}
		switch {
		case o.code == cli.ExitDone:
			acknowledged[fmt.Sprintf("op%d", i)] = result.Revision
		case o.code != cli.ExitFailed || !strings.Contains(result.Services[0].Error, "service web was changed (now at revision ") ||
			!strings.Contains(result.Services[0].Error, " by op") || !strings.Contains(o.stderr, "someone else changed it at the same time"):
			t.Errorf("operator %d: exit code = %d, want done or failed: %s%s", i, o.code, o.stdout, o.stderr)
		}
	}
	if len(acknowledged) == 0 {
		t.Fatal("successful operators = 0, want at least 1")
	}
	past, err := f.writer(t).History(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if past[0].N == 1 {
		past = past[1:]
	}
	for _, e := range past {
		name, _, _ := strings.Cut(e.By, "@")
		revision, known := acknowledged[name]
		if delete(acknowledged, name); !known || revision != e.Revision {
			t.Errorf("version %d by %s: revision = %d, want the revision %d that its author received (author known: %t)", e.N, e.By, e.Revision, revision, known)
		}
		port := e.Fields["ports"].([]any)[0].(map[string]any)["port"]
		if want := "op" + fmt.Sprint(mustInt(t, port)-1001); name != want {
			t.Errorf("version %d: author = %s, want %s according to its port", e.N, name, want)
		}
	}
	if len(acknowledged) > 0 {
		t.Errorf("acknowledged writes that the history lacks = %v, want none", acknowledged)
	}
}

func mustInt(t *testing.T, v any) int {
	t.Helper()
	n, err := v.(json.Number).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// newEditFor applies services. Just before they are written, it calls the function then, which may
// make another edit.
func (f *testFleet) newEditFor(t *testing.T, services string, then func()) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	w := cli.World{Stdout: &out, Stderr: &errs, Now: time.Now, Getenv: func(string) string { return "ana" }}
	v := applyVerb()
	v.Run = func(c *cli.Call) error {
		g, err := readGiven(c, []string{f.file(services)}, false)
		if err != nil {
			return err
		}
		e := newEdit(c, g.changes(), g.problems)
		if err := errors.Join(e.read(), e.wantVIPs(g, false), e.judge()); err != nil {
			return err
		}
		then()
		return e.finish(false)
	}
	code = cli.Run(t.Context(), w, []cli.Group{{Verbs: []*cli.Verb{v}}}, append([]string{"apply"}, f.flags...))
	return code, out.String(), errs.String()
}

// TestConcurrentEdit changes etcd while another edit is in progress. The faster change must remain,
// and the slower edit must still write its other services and settings.
func TestConcurrentEdit(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("web", "10.96.0.10", 80)))
	both := serviceText("web", "10.96.0.10", 81) + serviceText("api", "10.96.0.11", 80) + oneHolder
	code, stdout, stderr := f.newEditFor(t, both, func() {
		if code, _, stderr := f.run(t.Context(), "bob", "apply", "-f", f.file(serviceText("web", "10.96.0.10", 82))); code != cli.ExitDone {
			t.Fatal(stderr)
		}
	})
	if code != cli.ExitFailed || !strings.Contains(stderr, "service web was changed (now at revision ") || !strings.Contains(stderr, " by bob@") ||
		!strings.Contains(stderr, " at 20") || !strings.HasPrefix(stdout, "api: created\n10.96.0.10: created\n") || strings.Contains(stdout, "web") {
		t.Errorf("exit code = %d, want \"api\" and 10.96.0.10 created, and \"web\" reported as changed by bob:\n%s%s", code, stdout, stderr)
	}
	if got := f.do(cli.ExitDone, "export", "web"); !strings.Contains(got, "port = 82") {
		t.Errorf("service =\n%s\nwant bob's edit in it", got)
	}
	f.wantPolicies(t, 1)
	code, stdout, stderr = f.newEditFor(t, serviceText("new", "10.96.0.20", 80)+serviceText("next", "10.96.0.21", 80), func() {
		f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("other", "10.96.0.20", 80)))
	})
	if code != cli.ExitFailed || stdout[:strings.Index(stdout, "revision")] != "next: created\n" || !strings.Contains(stderr, "10.96.0.20:80/tcp is claimed by service other (/vipd/services/other, revision ") ||
		!strings.Contains(stderr, "1 change not written, because someone else changed it at the same time") {
		t.Errorf("exit code = %d, want a note about 1 change that was not written:\n%s%s", code, stdout, stderr)
	}
}

// oneHolder sets hold = "one" for a VIP.
const oneHolder = "[vips.\"10.96.0.10\"]\nhold = \"one\"\n"

// wantPolicies checks the number of addresses with settings in etcd.
func (f *testFleet) wantPolicies(t *testing.T, want int64) {
	t.Helper()
	answer, err := f.cluster.Client().Get(t.Context(), "/vipd/ownership/policy/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if answer.Count != want {
		t.Errorf("addresses with settings in etcd = %d, want %d", answer.Count, want)
	}
}

// TestApplyEndsEarly applies two services as a user who may write only the first. "vipctl apply"
// must report exactly the service that it wrote.
func TestApplyEndsEarly(t *testing.T) {
	const password = "s3cret"
	f := newFleet(t, etcdkit.Options{})
	f.cluster.EnableAuth(etcdkit.User{
		Name: "ana", Password: password, Read: []string{"/vipd/"},
		Write: []string{"/vipd/services/api", "/vipd/history/", "/vipd/claims/", "/vipd/ownership/"},
	})
	f.flags = append(f.flags, "--user", "ana", "--password-file", f.file(password))
	text := serviceText("api", "10.96.0.11", 80) + serviceText("web", "10.96.0.10", 80) + oneHolder
	code, stdout, stderr := f.run(t.Context(), "ana", "apply", "-f", f.file(text))
	if code != cli.ExitFailed || !regexp.MustCompile(`^api: created\nrevision .*\n$`).MatchString(stdout) || !strings.Contains(stderr, "writing service web: ") {
		t.Errorf("exit code = %d, want a failure after api was created:\n%s%s", code, stdout, stderr)
	}
	f.wantPolicies(t, 0)
}

// TestParallelClaims writes many services at once. If the services claim the same address and port,
// or the same node port, exactly one service must be written, and the errors must name this
// service. Services without a common claim must all be written.
func TestParallelClaims(t *testing.T) {
	n := wait.Soak(20, 100)
	f := newFleet(t, etcdkit.Options{})
	texts := map[string]func(i int) string{
		"one address": func(i int) string { return serviceText(fmt.Sprint("a", i), "10.96.1.1", 80) },
		"one node port": func(i int) string {
			return fmt.Sprintf("[services.n%d]\nvips = [\"10.96.2.%d\"]\nports = [{ port = 80, node_port = 30080 }]\n", i, i+1)
		},
		"different ports": func(i int) string { return serviceText(fmt.Sprint("p", i), "10.96.1.2", 1000+i) },
		"many claims each": func(i int) string {
			ports := make([]string, 50)
			for j := range ports {
				ports[j] = fmt.Sprintf("{ name = \"p%d\", port = %d }", j, 1+j+50*i)
			}
			return fmt.Sprintf("[services.m%d]\nvips = [\"10.96.1.3\"]\nports = [%s]\n", i, strings.Join(ports, ", "))
		},
	}
	for name, want := range map[string]int{"one address": 1, "one node port": 1, "different ports": n, "many claims each": 10} {
		t.Run(name, func(t *testing.T) {
			tried := n
			if name == "many claims each" {
				tried = want
			}
			files := make([]string, tried)
			for i := range files {
				files[i] = f.file(texts[name](i))
			}
			before := len(f.written(t))
			var running sync.WaitGroup
			var written atomic.Int32
			for _, file := range files {
				running.Go(func() {
					code, stdout, stderr := f.process("ana", "apply", "-f", file)
					switch {
					case code == cli.ExitDone:
						written.Add(1)
					case code != cli.ExitFailed || want > 1 || !strings.Contains(stderr, " is claimed by service "):
						t.Errorf("exit code = %d, want a failure that names the service with the claim:\n%s%s", code, stdout, stderr)
					}
				})
			}
			running.Wait()
			if got := len(f.written(t)) - before; int(written.Load()) != want || got != want {
				t.Errorf("successful writes = %d, new services = %d; want %d each", written.Load(), got, want)
			}
		})
	}
}

// written returns the names of all services in etcd.
func (f *testFleet) written(t *testing.T) []balancer.Name {
	t.Helper()
	names, err := f.writer(t).Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestFleetCheckRules describes a service in etcd that has a check. The output must include the
// check's defaults.
func TestFleetCheckRules(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("web", "10.96.0.10", 80)+"health = { type = \"tcp\", interval = \"4s\" }\n"))
	if got, want := f.do(cli.ExitDone, "describe", "service", "web"), "tcp every 4s, 1s while confirming a change, timeout 1s, rise 2, fall"; !strings.Contains(got, want) {
		t.Errorf("output =\n%s\nwant %q in it", got, want)
	}
}

// TestFleetAccess uses an etcd with TLS, users and permissions. Flags or the configuration provide
// the certificate, the user and the password. No output may contain a password.
func TestFleetAccess(t *testing.T) {
	const password, wrong = "s3cret-of-ana", "wrong-secret"
	f := newFleet(t, etcdkit.Options{TLS: true})
	f.cluster.EnableAuth(
		etcdkit.User{Name: "ana", Password: password, Write: []string{"/vipd/"}},
		etcdkit.User{Name: "reader", Password: password, Read: []string{"/vipd/services/"}},
	)
	dir := t.TempDir()
	for name, text := range map[string]string{"right": password + "\n", "wrong": wrong + "\n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, services := f.cluster.Files, f.file(serviceText("web", "10.96.0.10", 80))
	tls := []string{"--ca-file", files.CA, "--cert-file", files.ClientCert, "--key-file", files.ClientKey}
	as := func(user, file string) []string {
		return append(append([]string{}, tls...), "--user", user, "--password-file", filepath.Join(dir, file))
	}
	config := filepath.Join(dir, "vipd.toml")
	text := fmt.Sprintf("[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [%q]\nusername = \"ana\"\npassword_file = \"right\"\nca_file = %q\ncert_file = %q\nkey_file = %q\n",
		f.cluster.Endpoints()[0], files.CA, files.ClientCert, files.ClientKey)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := f.flags
	for _, test := range []struct {
		name  string
		flags []string
		line  []string
		code  int
		want  string
	}{
		{"no certificate", plain, []string{"apply", "-f", services}, cli.ExitFailed, "certificate"},
		{"nobody", append(tls, plain...), []string{"apply", "-f", services}, cli.ExitFailed, "a client without username may not do that"},
		{"wrong password", append(as("ana", "wrong"), plain...), []string{"apply", "-f", services}, cli.ExitFailed, "invalid user ID or password"},
		{"no password", append(as("ana", "empty"), plain...), []string{"apply", "-f", services}, cli.ExitFailed, "is empty"},
		{"absent password", append(as("ana", "absent"), plain...), []string{"apply", "-f", services}, cli.ExitFailed, "reading password_file: open "},
		{"flags", append(as("ana", "right"), plain...), []string{"apply", "-f", services}, cli.ExitDone, "web: created"},
		{"config", []string{"--config", config}, []string{"apply", "-f", services}, cli.ExitDone, "web: unchanged"},
		{"reader reads", append(as("reader", "right"), plain...), []string{"export"}, cli.ExitDone, "[services.web]"},
		{"reader may not write", append(as("reader", "right"), plain...), []string{"delete", "service", "web"}, cli.ExitFailed, "the user reader may not do that: its role has no permission for /vipd/"},
		{"half a login", append(tls, append(plain, "--user", "ana")...), []string{"export"}, cli.ExitWrongUse, "username and password_file must be set together"},
		{"history", []string{"--config", config}, []string{"history", "web"}, cli.ExitDone, "created"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.flags = test.flags
			var code int
			var all string
			wait.For(t, wait.Patience, "an answer of etcd, which may be late", func() bool {
				var stdout, stderr string
				code, stdout, stderr = f.run(t.Context(), "ana", test.line...)
				all = stdout + stderr
				return !strings.Contains(all, "deadline exceeded") && !strings.Contains(all, "no answer in time")
			})
			if code != test.code || !strings.Contains(all, test.want) {
				t.Errorf("exit code = %d, want %d and %q:\n%s", code, test.code, test.want, all)
			}
			if strings.Contains(all, password) || strings.Contains(all, wrong) {
				t.Errorf("output =\n%s\nwant no password in it", all)
			}
		})
	}
}

// TestKubectlHabits runs command lines in the form that kubectl users would type. Nested
// directories, KIND/NAME for a service, and rollbacks must work.
func TestKubectlHabits(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	folder := t.TempDir()
	for name, text := range map[string]string{
		"web.toml": serviceText("web", "10.96.0.10", 80), "more/db.toml": serviceText("db", "10.96.0.11", 80), "more/.old/old.toml": "nonsense",
	} {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	f.do(cli.ExitDone, "apply", "-f", folder)
	f.do(cli.ExitDone, "diff", "-f", folder)
	f.do(cli.ExitDifferences, "diff", "-f", folder, "-R")
	f.do(cli.ExitDone, "apply", "-f", folder, "-R")
	f.do(cli.ExitDone, "diff", "-f", folder, "-R")
	f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("web", "10.96.0.10", 81)))
	f.do(cli.ExitDone, "rollback", "svc/web", "1")
	f.do(cli.ExitDone, "delete", "svc/db")
	if got := f.do(cli.ExitDone, "get", "svc", "-o", "name"); got != "web\n" {
		t.Errorf("services = %q, want web", got)
	}
	if got := f.do(cli.ExitDone, "history", "service/web"); !strings.Contains(got, "rolled back to 1") {
		t.Errorf("history =\n%s\nwant the rollback in it", got)
	}
}

// TestFleetWatch runs "vipctl get services -w". Until vipctl is interrupted, it must show each
// change in etcd, even after an outage.
func TestFleetWatch(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("web", "10.96.0.10", 80)))
	w := f.writer(t)
	ctx, interrupt := context.WithTimeout(t.Context(), wait.Patience)
	defer interrupt()
	out, errs := &notice{}, &notice{}
	steps := []struct {
		seen string
		then func()
	}{
		{"80/tcp", func() { f.apply(t, w, 81) }},
		{"81/tcp", func() { f.cluster.Members[0].Kill(); f.cluster.Members[0].Start(); f.apply(t, f.writer(t), 82) }}, // a new writer, because w would wait for a reconnect
		{"82/tcp", interrupt},
	}
	seen := make(chan func(), len(steps)) // vipctl may show a change before the writer receives etcd's answer, so another goroutine makes the next change
	var running sync.WaitGroup
	defer running.Wait()
	defer close(seen)
	running.Go(func() {
		for then := range seen {
			then()
		}
	})
	step := 0
	out.written = func(all string) {
		if step < len(steps) && strings.Contains(all, steps[step].seen) {
			seen <- steps[step].then
			step++
		}
	}
	world := cli.World{Stdout: out, Stderr: errs, Now: time.Now, Getenv: func(string) string { return "" }}
	code := run(ctx, world, append([]string{"get", "services", "-w"}, f.flags...))
	if want := strings.Count(out.String(), "NAME  VIPS"); code != cli.ExitDone || step != len(steps) || want < 3 {
		t.Errorf("after %d steps: exit code = %d, want 0 after all steps:\n%s%s", step, code, out, errs)
	}
}

// apply changes the "web" service's port, as another operator would.
func (f *testFleet) apply(t *testing.T, w *etcd.Store, port int) {
	fields := map[string]any{"vips": []any{"10.96.0.10"}, "ports": []any{map[string]any{"port": int64(port)}}}
	if _, err := w.Apply(t.Context(), definitions.Change{Name: balancer.Name("web"), Fields: fields, Base: definitions.Any}); err != nil {
		t.Error(err)
	}
}
