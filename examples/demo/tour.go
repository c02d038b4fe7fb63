package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vipd/examples/process"
)

const (
	tourVIP = "127.10.9.1:8080"
	clients = 8
)

// tourist is one tour: three servers, a daemon, and a configuration that changes on the way.
type tourist struct {
	*rig
	folder, config string
	servers        map[string]*process.Process
	claims, broken int
}

// serverAddress is where each server listens; the addresses are all local.
func serverAddress(name string) string {
	return map[string]string{"a": "127.10.9.11", "b": "127.10.9.12", "c": "127.10.9.13"}[name]
}

// tour runs all stations, and fails if any claim did not hold.
func tour(ctx context.Context) (err error) {
	folder, err := os.MkdirTemp("", "vipd-tour-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	r, err := newRig(filepath.Join(folder, "vipd.sock"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	t := &tourist{rig: r, folder: folder, config: filepath.Join(folder, "vipd.toml"), servers: map[string]*process.Process{}}
	for _, name := range []string{"a", "b", "c"} {
		if err := t.startServer(ctx, name); err != nil {
			return err
		}
	}
	if err := t.write(tourConfig); err != nil {
		return err
	}
	if _, err := t.vipd(ctx, nil, t.config); err != nil {
		return err
	}
	fmt.Printf("three servers a, b, c behind %s; every request is a new connection, nothing is retried by the clients\n", tourVIP)
	stations := []func(context.Context) error{t.spread, t.death, t.drained, t.reloaded, t.brokenFile}
	for _, station := range stations {
		if err := station(ctx); err != nil {
			return err
		}
	}
	if t.broken > 0 {
		return fmt.Errorf("%d of %d claims did not hold", t.broken, t.claims)
	}
	fmt.Printf("\nall %d claims held\n", t.claims)
	return nil
}

const tourConfig = `mode = "userspace"
state_dir = "state"
run_dir = "run"
[api]
socket = "vipd.sock"
http = ""
[userspace]
intercept = "bind"

[services.web]
vips = ["127.10.9.1"]
ports = [{ port = 8080 }]

[[services.web.endpoints]]
address = "127.10.9.11"

[[services.web.endpoints]]
address = "127.10.9.12"

[[services.web.endpoints]]
address = "127.10.9.13"
`

// claim checks one statement and prints it with what was seen.
func (t *tourist) claim(holds bool, format string, args ...any) {
	t.claims++
	mark := "yes"
	if !holds {
		t.broken++
		mark = "NO"
	}
	fmt.Printf("  %-4s %s\n", mark, fmt.Sprintf(format, args...))
}

// noFailures claims that every request was answered.
func (t *tourist) noFailures(seen tally) {
	t.claim(len(seen.failures) == 0, "no request failed (%d answered, %d failed%s)", seen.total(), len(seen.failures), first(seen.failures))
}

func first(failures []string) string {
	if len(failures) == 0 {
		return ""
	}
	return ", the first: " + failures[0]
}

// write replaces the configuration in one step, as an editor or a deployment does.
func (t *tourist) write(text string) error {
	next := t.config + ".next"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(next, t.config)
}

func (t *tourist) countFile(name string) string { return filepath.Join(t.folder, name+".count") }

func (t *tourist) startServer(ctx context.Context, name string) (err error) {
	t.servers[name], err = t.echo(ctx, name, "--http", serverAddress(name)+":8080", "--count-file", t.countFile(name))
	return err
}

// accepted is the server's own count of HTTP requests; it can be read after its death too.
func (t *tourist) accepted(name string) (n int, err error) {
	text, err := os.ReadFile(t.countFile(name))
	if err != nil {
		return 0, err
	}
	if len(text) == 0 {
		return 0, nil // nothing was accepted yet
	}
	if _, err := fmt.Sscanf(string(text), "accepted http=%d", &n); err != nil {
		return 0, fmt.Errorf("reading the count of %s from %q: %w", name, text, err)
	}
	return n, nil
}

// endpoint is what vipctl says of a server.
type endpoint struct {
	Address     string `json:"address"`
	State       string `json:"state"`
	Active      int    `json:"active"`
	Connections int    `json:"connections"`
}

func (t *tourist) endpoint(ctx context.Context, name string) (endpoint, error) {
	var all []endpoint
	if err := t.ask(ctx, &all, "get", "endpoints"); err != nil {
		return endpoint{}, err
	}
	for _, e := range all {
		if strings.HasPrefix(e.Address, serverAddress(name)+":") {
			return e, nil
		}
	}
	return endpoint{}, fmt.Errorf("vipctl does not know the endpoint %s: %v", serverAddress(name), all)
}

// answering waits until the load has seen n more answers of a server than before.
func (t *tourist) answering(ctx context.Context, l *load, name string, n int) error {
	before := l.sofar().answers[name]
	return await(ctx, fmt.Sprintf("%s has answered %d more requests", name, n), func() (bool, error) {
		return l.sofar().answers[name] >= before+n, nil
	})
}
