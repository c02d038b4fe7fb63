package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// run runs vipd with examples/quickstart.toml, and its three servers, until ctx is done.
func run(ctx context.Context) (err error) {
	r, err := newRig("")
	if err != nil {
		return err
	}
	top := filepath.Dir(r.bin)
	config := filepath.Join(top, "examples", "quickstart.toml")
	r.socket = filepath.Join(top, "build", "quickstart", "run", "vipd.sock")
	if err := quickstartPortsFree(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	for i, name := range []string{"a", "b", "c"} {
		http, raw := fmt.Sprintf("127.0.0.1:%d", 18081+i), fmt.Sprintf("127.0.0.1:%d", 17001+i)
		if _, err := r.echo(ctx, name, "--http", http, "--tcp", raw, "--udp", raw); err != nil {
			return err
		}
	}
	daemon, err := r.vipd(ctx, os.Stderr, config)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	socket := r.socket
	if here, err := os.Getwd(); err == nil {
		if short, err := filepath.Rel(here, socket); err == nil && !strings.HasPrefix(short, "..") {
			socket = short
		}
	}
	fmt.Printf(lines, socket)
	select {
	case <-ctx.Done():
		fmt.Println("\nstopping vipd and the servers")
		return nil
	case <-daemon.Done():
		return fmt.Errorf("vipd has exited: %w", cmp.Or(daemon.Err(), errors.New("with exit code 0")))
	}
}

const lines = `
vipd serves examples/quickstart.toml. In another terminal:

  curl 127.10.0.1:8080                                which server answers? Ask again.
  nc 127.10.0.1 7000                                  TCP: says the server's name, then echoes; Ctrl-C leaves
  echo hello | nc -u -w 1 127.10.0.1 7000             UDP
  bin/vipctl --socket %[1]s status
  bin/vipctl --socket %[1]s get endpoints
  bin/vipctl --socket %[1]s drain web 127.0.0.1:18082

Edit examples/quickstart.toml while it runs: vipd takes the change by itself. Ctrl-C here ends everything.
`

// quickstartPortsFree returns an error if other programs use ports that the quickstart needs.
func quickstartPortsFree() error {
	needed := []string{"tcp 127.10.0.1:8080", "tcp 127.10.0.1:7000", "udp 127.10.0.1:7000", "tcp 127.0.0.1:9890"}
	for i := range 3 {
		needed = append(needed, fmt.Sprintf("tcp 127.0.0.1:%d", 18081+i), fmt.Sprintf("tcp 127.0.0.1:%d", 17001+i), fmt.Sprintf("udp 127.0.0.1:%d", 17001+i))
	}
	var taken []string
	for _, place := range needed {
		if err := tryBind(place); errors.Is(err, syscall.EADDRINUSE) {
			taken = append(taken, place)
		} else if err != nil {
			return fmt.Errorf("trying %s: %w", place, err)
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("another program (perhaps a second make run) uses %s: stop it first; ss -lntup shows the program",
			strings.Join(taken, ", "))
	}
	return nil
}

// tryBind briefly listens on an address such as "udp 127.0.0.1:7000", and returns an error if that
// fails.
func tryBind(place string) (err error) {
	var l io.Closer
	if network, address, _ := strings.Cut(place, " "); network == "udp" {
		l, err = net.ListenPacket(network, address)
	} else {
		l, err = net.Listen(network, address)
	}
	if err != nil {
		return err
	}
	return l.Close()
}
