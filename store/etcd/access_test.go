package etcd_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/etcd/client"
	"vipd/store/etcd/watch"
	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// TestReader follows etcd over TLS, as a user whose role may read only three folders and whose
// tokens expire. These permissions must be sufficient, even after outages. The log must not contain
// the user's password.
func TestReader(t *testing.T) {
	t.Parallel()
	c, relay, p := single(t, etcdkit.Options{TLS: true, TokenTTL: time.Second})
	const password = "correct horse"
	c.EnableAuth(etcdkit.User{Name: "vipd", Password: password, Read: []string{"/vipda/services/", "/vipda/endpoints/", "/vipda/overrides/"}})
	p.client = c.Client()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := overTLS(c)
	config.Endpoints, config.Username, config.PasswordFile = p.config.Endpoints, "vipd", file
	var log strings.Builder
	f := follow(t, newSource(t, watch.Options{Config: config, Patience: time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}))
	f.wait("the first state", connected)
	for i := range 3 {
		relay.Cut()
		f.wait("the outage", func(s store.Snapshot) bool { return !s.Connected })
		if i == 1 {
			time.Sleep(3 * time.Second) // until the token expires; etcd checks for that every second
		}
		relay.Heal()
		f.wait("the return", connected)
	}
	p.client = c.Client() // the previous client's token has expired
	f.reaches(p.put("/services/web", `{"vips":["10.96.0.11"],"ports":[{"port":80}]}`))
	f.stop()
	if strings.Contains(log.String(), password) || log.Len() == 0 {
		t.Errorf("log =\n%s\nwant messages, but not the password", log.String())
	}
}

// overTLS returns the client configuration for a cluster that uses TLS.
func overTLS(c *etcdkit.Cluster) client.Config {
	config := configAt(c, 0)
	config.CAFile, config.CertFile, config.KeyFile = c.Files.CA, c.Files.ClientCert, c.Files.ClientKey
	return config
}

// TestUntrusted connects with certificates that the client or the server rejects. The error must
// name the certificate and the reason.
func TestUntrusted(t *testing.T) {
	t.Parallel()
	c := etcdkit.Start(t, etcdkit.Options{TLS: true})
	c.Kill()
	former := c.Reissue()
	c.Start()
	for want, edit := range map[string]func(*client.Config){
		": tls: failed to verify certificate: x509: certificate signed by unknown authority": func(o *client.Config) { o.CAFile = former.CA },
		": etcd would refuse cert_file " + former.ClientCert + ": ": func(o *client.Config) {
			o.CertFile, o.KeyFile = former.ClientCert, former.ClientKey
		},
		".crt expired on ": func(o *client.Config) { o.CertFile, o.KeyFile = c.Files.ClientUntil(t, time.Now().Add(-time.Minute)) },
	} {
		config := overTLS(c)
		edit(&config)
		_, err := newWriter(t, config).Statuses(t.Context())
		if !client.Untrusted(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want one that contains %q", err, want)
		}
	}
	if _, err := newWriter(t, overTLS(c)).Statuses(t.Context()); err != nil {
		t.Error(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for conn, err := ln.Accept(); err == nil; conn, err = ln.Accept() {
			_ = conn.Close() // like a proxy while all members behind it are down
		}
	}()
	config := overTLS(c)
	config.Endpoints = []string{"https://" + ln.Addr().String()}
	if _, err := newWriter(t, config).Statuses(t.Context()); err == nil || client.Untrusted(err) || !client.Unreachable(err) {
		t.Errorf("after the server closed the connection: error = %v, want the error that etcd can't be reached", err)
	}
}

// TestNoAccess connects to etcd without access to it, for several reasons. The error must name the
// reason, and must not contain a password.
func TestNoAccess(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	c.EnableAuth(etcdkit.User{Name: "half", Password: "secret", Read: []string{"/vipda/services/"}})
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	right, wrong := file("right", "secret"), file("wrong", "guess")
	for want, config := range map[string]client.Config{
		"a client without username may not read /vipda/services/": {},
		"the user half may not read /vipda/endpoints/":            {Username: "half", PasswordFile: right},
		"authentication failed, invalid user ID or password":      {Username: "half", PasswordFile: wrong},
		"reading password_file":                                   {Username: "half", PasswordFile: dir + "/none"},
		"is empty":                                                {Username: "half", PasswordFile: file("empty", "\n")},
	} {
		config.Endpoints, config.Prefix = p.config.Endpoints, p.config.Prefix
		f := follow(t, newSource(t, watch.Options{Config: config, Patience: time.Millisecond}))
		s := f.wait(want, func(s store.Snapshot) bool { return s.Err != nil && strings.Contains(s.Err.Error(), want) })
		if s.Connected || strings.Contains(s.Err.Error(), "secret") || strings.Contains(s.Err.Error(), "guess") {
			t.Errorf("connected = %t, error = %v, want false and no password in the error", s.Connected, s.Err)
		}
		f.stop()
	}
}

// TestNoAccessChanges removes the first of two reasons why etcd can't be accessed. The second
// reason must soon be reported instead of the first.
func TestNoAccessChanges(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{})
	c.EnableAuth(etcdkit.User{Name: "half", Password: "secret", Read: []string{"/vipda/services/"}})
	config := p.config
	config.Username, config.PasswordFile = "half", filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(config.PasswordFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("guess")
	source, err := watch.New(watch.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	f := follow(t, source)
	says := func(want string) {
		t.Helper()
		f.wait(want, func(s store.Snapshot) bool { return s.Err != nil && strings.Contains(s.Err.Error(), want) })
	}
	says("authentication failed")
	write("secret")
	began := time.Now()
	says("the user half may not read /vipda/endpoints/")
	if took := time.Since(began); took > wait.Scaled(28*time.Second) {
		t.Errorf("time until the second reason was logged = %s, want at most %s", took, wait.Scaled(28*time.Second))
	}
}

// TestRevoked revokes a source's read permission. etcd then keeps the source's watch open, but
// sends no more events on it. The source must detect this, even if the user was removed or the
// token has expired. The last state must stay in use until the permission is restored.
func TestRevoked(t *testing.T) {
	t.Parallel()
	c, _, p := single(t, etcdkit.Options{TokenTTL: 2 * time.Second})
	folders := []string{"/vipda/services/", "/vipda/endpoints/", "/vipda/overrides/", "/vipda/vips/"}
	c.EnableAuth(etcdkit.User{Name: "vipd", Password: "secret", Read: folders})
	p.client = c.Client()
	config := p.config
	config.Username, config.PasswordFile = "vipd", filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(config.PasswordFile, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	source := newSource(t, watch.Options{Config: config, Patience: time.Millisecond})
	f := follow(t, source)
	f.wait("the first state", connected)
	n := 0
	change := func() (name string) {
		n++
		name = fmt.Sprint("web", n)
		p.client = c.Client() // the previous client's token has expired
		p.put("/services/"+name, fmt.Sprintf(`{"vips":["10.96.1.%d"],"ports":[{"port":80}]}`, n))
		return name
	}
	admin := func(what string, operation func(context.Context) error) {
		t.Helper()
		p.client = c.Client()
		p.try(what, operation)
	}
	for _, step := range []struct {
		want       string
		away, back func()
	}{
		{"the user vipd may not read /vipda/services/", func() { c.Revoke("vipd", "/vipda/services/") }, func() { c.Grant("vipd", "/vipda/services/") }},
		{"the user vipd may not read /vipda/overrides/", func() { c.Revoke("vipd", "/vipda/overrides/") }, func() { c.Grant("vipd", "/vipda/overrides/") }},
		{"authentication failed, invalid user ID or password", func() {
			admin("delete the user", func(ctx context.Context) error { _, err := p.client.UserDelete(ctx, "vipd"); return err })
		}, func() {
			admin("add the user", func(ctx context.Context) error { _, err := p.client.UserAdd(ctx, "vipd", "secret"); return err })
			admin("grant the role", func(ctx context.Context) error {
				_, err := p.client.UserGrantRole(ctx, "vipd", "vipd")
				return err
			})
		}},
	} {
		name := change()
		before := f.wait(name, func(s store.Snapshot) bool { return s.Connected && s.Services.Has(balancer.Name(name)) })
		step.away()
		s := f.wait(step.want, func(s store.Snapshot) bool { return s.Err != nil && strings.Contains(s.Err.Error(), step.want) })
		if s.Connected || s.Services != before.Services || !strings.Contains(s.Err.Error(), "; serving revision ") {
			t.Errorf("without the permission: connected = %t, services = %d, error = %v; want false, the last services, and the served revision in the error", s.Connected, s.Services.Len(), s.Err)
		}
		name = change()
		step.back()
		f.wait(name, func(s store.Snapshot) bool { return s.Connected && s.Services.Has(balancer.Name(name)) })
	}
	c.Revoke("vipd", "/vipda/vips/") // revokes read permission for an optional folder
	s := f.wait("the problem", func(s store.Snapshot) bool { return len(s.Problems) > 0 })
	if !s.Connected || !strings.Contains(s.Problems[0].Text, "the user vipd may not read it") {
		t.Errorf("without read permission for vips/: connected = %t, problems = %v, want true and a problem about the permission", s.Connected, s.Problems)
	}
	name := change()
	f.wait(name, func(s store.Snapshot) bool { return s.Connected && s.Services.Has(balancer.Name(name)) })
}

func TestConfig(t *testing.T) {
	good := client.Config{Endpoints: []string{"https://a:2379", "https://b:2379"}, Prefix: "/vipd", CAFile: "ca", CertFile: "c", KeyFile: "k", Username: "u", PasswordFile: "p"}
	if err := good.Check(); err != nil {
		t.Errorf("Check of a valid configuration = %v, want nil", err)
	}
	for want, edit := range map[string]func(*client.Config){
		"prefix":                                   func(c *client.Config) { c.Prefix = "/" },
		"name at least one":                        func(c *client.Config) { c.Endpoints = nil },
		"endpoints[1]: needs a URL":                func(c *client.Config) { c.Endpoints[1] = "b:2379" },
		"endpoints[0]: needs a URL":                func(c *client.Config) { c.Endpoints[0] = "https://a" },
		"the URL must not contain a user":          func(c *client.Config) { c.Endpoints[0] = "https://u:hidden@a:2379" },
		"nothing may follow":                       func(c *client.Config) { c.Endpoints[0] = "https://a:2379/v3" },
		"all must use http, or all must use https": func(c *client.Config) { c.Endpoints[0] = "http://a:2379" },
		"only with https endpoints":                func(c *client.Config) { c.Endpoints = []string{"http://a:2379"} },
		"cert_file and key_file must be":           func(c *client.Config) { c.KeyFile = "" },
		"username and password_file must":          func(c *client.Config) { c.Username = "" },
		"username and password_file must be":       func(c *client.Config) { c.PasswordFile = "" },
	} {
		c := good
		c.Endpoints = append([]string(nil), good.Endpoints...)
		edit(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("error = %[2]v, want one that contains %[1]q", want, err)
		}
	}
}
