package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"vipd/examples/process"
)

const (
	tourVIP = "127.10.9.1:8080"
	clients = 8
)

// tourist runs a tour with three servers, a vipd and a configuration that the tour changes. After
// the first error, its methods do nothing.
type tourist struct {
	*rig
	ctx            context.Context
	folder, config string
	servers        map[string]*process.Process
	loads          []*load
	claims, broken int
	err            error
}

// serverAddress returns the local address on which a server listens.
func serverAddress(name string) string {
	return map[string]string{"a": "127.10.9.11", "b": "127.10.9.12", "c": "127.10.9.13"}[name]
}

// tour runs all stations. It returns an error if a step fails or a claim does not hold.
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
	t := &tourist{rig: r, ctx: ctx, folder: folder, config: filepath.Join(folder, "vipd.toml"), servers: map[string]*process.Process{}}
	defer t.stopLoads()
	for _, name := range []string{"a", "b", "c"} {
		t.startServer(name)
	}
	t.write(tourConfig)
	t.do(func() error {
		_, err := t.vipd(ctx, nil, t.config)
		return err
	})
	t.say("three servers, a, b and c, behind %s; each request is a new connection, and clients do not retry", tourVIP)
	for _, station := range []func(){t.spread, t.death, t.drained, t.reloaded, t.brokenFile} {
		station()
	}
	switch {
	case t.err != nil:
		return t.err
	case t.broken > 0:
		return fmt.Errorf("%d of %d claims did not hold", t.broken, t.claims)
	}
	t.say("\nall %d claims held", t.claims)
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

// do runs a step, unless an earlier step has failed or the tour's context is done.
func (t *tourist) do(step func() error) {
	if t.err == nil {
		t.err = t.ctx.Err()
	}
	if t.err == nil {
		t.err = step()
	}
}

func (t *tourist) say(format string, args ...any) {
	if t.err == nil {
		fmt.Printf(format+"\n", args...)
	}
}

// claim prints a claim, and whether it holds.
func (t *tourist) claim(holds bool, format string, args ...any) {
	if t.err != nil {
		return
	}
	t.claims++
	mark := "yes"
	if !holds {
		t.broken++
		mark = "NO"
	}
	t.say("  %-4s %s", mark, fmt.Sprintf(format, args...))
}

// noFailures claims that no request failed.
func (t *tourist) noFailures(seen tally) {
	t.claim(len(seen.failures) == 0, "no request failed (%d answered, %d failed%s)", seen.total(), len(seen.failures), first(seen.failures))
}

func first(failures []string) string {
	if len(failures) == 0 {
		return ""
	}
	return ", the first: " + failures[0]
}

// write replaces the configuration file atomically, as editors and deployments do.
func (t *tourist) write(text string) {
	t.do(func() error {
		next := t.config + ".next"
		if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
			return err
		}
		return os.Rename(next, t.config)
	})
}

func (t *tourist) countFile(name string) string { return filepath.Join(t.folder, name+".count") }

func (t *tourist) startServer(name string) {
	t.do(func() (err error) {
		t.servers[name], err = t.echo(t.ctx, name, "--http", serverAddress(name)+":8080", "--count-file", t.countFile(name))
		return err
	})
}

// command runs vipctl with args, and returns its output. The command must succeed.
func (t *tourist) command(args ...string) (out string) {
	t.do(func() (err error) {
		out, err = t.vipctl(t.ctx, args...)
		return err
	})
	return out
}

// accepted returns the number of HTTP requests that a server has accepted. It comes from the
// server's file, so it can be read even after the server was killed.
func (t *tourist) accepted(name string) (n int) {
	t.do(func() error {
		text, err := os.ReadFile(t.countFile(name))
		if err != nil || len(text) == 0 { // the server has not accepted a request yet
			return err
		}
		if _, err := fmt.Sscanf(string(text), "accepted http=%d", &n); err != nil {
			return fmt.Errorf("reading the count of %s from %q: %w", name, text, err)
		}
		return nil
	})
	return n
}

// endpoint is an endpoint in vipctl's output.
type endpoint struct {
	Address     string `json:"address"`
	State       string `json:"state"`
	Active      int    `json:"active"`
	Connections int    `json:"connections"`
}

func (t *tourist) endpoint(name string) (e endpoint) {
	t.do(func() error {
		var all []endpoint
		if err := t.ask(t.ctx, &all, "get", "endpoints"); err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(e endpoint) bool { return strings.HasPrefix(e.Address, serverAddress(name)+":") })
		if i < 0 {
			return fmt.Errorf("vipctl does not know the endpoint %s: %v", serverAddress(name), all)
		}
		e = all[i]
		return nil
	})
	return e
}

// fetch sends requests one after another, and returns the number of answers from each server.
func (t *tourist) fetch(times int) map[string]int {
	seen := map[string]int{}
	for range times {
		t.do(func() error {
			name, err := fetch("http://" + tourVIP + "/")
			seen[name]++
			return err
		})
	}
	return seen
}

// startLoad starts clients that request the path until stop is called.
func (t *tourist) startLoad(path string) *load {
	ctx, cancel := context.WithCancel(t.ctx)
	l := &load{url: "http://" + tourVIP + path, cancel: cancel, answers: map[string]int{}}
	for range clients {
		l.clients.Go(func() {
			for ctx.Err() == nil {
				l.count(fetch(l.url))
			}
		})
	}
	t.loads = append(t.loads, l)
	return l
}

func (t *tourist) stopLoads() {
	for _, l := range t.loads {
		l.stop()
	}
}

// answering waits until the load has received n more answers from a server.
func (t *tourist) answering(l *load, name string, n int) {
	before := l.sofar().answers[name]
	t.await(fmt.Sprintf("%s has answered %d more requests", name, n), func() (bool, error) {
		return l.sofar().answers[name] >= before+n, nil
	})
}

// await calls check until it returns true or patience has passed. what describes the condition in
// the error.
func (t *tourist) await(what string, check func() (bool, error)) {
	t.do(func() error {
		ctx, cancel := context.WithTimeout(t.ctx, patience)
		defer cancel()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			ok, err := check()
			if ok {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting until %s: %w", what, cmp.Or(err, ctx.Err()))
			case <-tick.C:
			}
		}
	})
}
