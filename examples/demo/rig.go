package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"vipd/examples/process"
)

// patience is the time limit for each step on a slow machine. It is long because a server that was
// down for some seconds may be ejected for half a minute.
const patience = 2 * time.Minute

// rig runs a demonstration's programs.
type rig struct {
	bin     string // directory that contains the programs
	socket  string // vipd's
	started []*process.Process
}

// newRig finds the programs in this program's directory.
func newRig(socket string) (*rig, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the programs: %w", err)
	}
	r := &rig{bin: filepath.Dir(self), socket: socket}
	for _, name := range []string{"vipd", "vipctl", "echo"} {
		if _, err := os.Stat(r.program(name)); err != nil {
			return nil, fmt.Errorf("%s is missing: run make build first", r.program(name))
		}
	}
	return r, nil
}

func (r *rig) program(name string) string { return filepath.Join(r.bin, name) }

// start starts one of the programs. It runs until end is called.
func (r *rig) start(tee io.Writer, name string, args ...string) (*process.Process, error) {
	p, err := process.Start(tee, exec.Command(r.program(name), args...))
	if err == nil {
		r.started = append(r.started, p)
	}
	return p, err
}

// echo starts a server and waits until it serves.
func (r *rig) echo(ctx context.Context, name string, args ...string) (*process.Process, error) {
	p, err := r.start(nil, "echo", append([]string{"--name", name}, args...)...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p, p.AwaitOutput(ctx, "serving")
}

// vipd starts the daemon and waits until it is ready.
func (r *rig) vipd(ctx context.Context, tee io.Writer, config string) (*process.Process, error) {
	p, err := r.start(tee, "vipd", "--config", config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p, p.Await(ctx, func() error {
		var status struct{ Ready bool }
		if err := r.ask(ctx, &status, "status"); err != nil {
			return err
		}
		if !status.Ready {
			return errors.New("it is not ready")
		}
		return nil
	})
}

// vipctl runs vipctl with args and returns its output.
func (r *rig) vipctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, r.program("vipctl"), append([]string{"--socket", r.socket}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("vipctl %v: %w\n%s", args, err, out)
	}
	return string(out), nil
}

// ask runs vipctl with args, and decodes the JSON output into answer.
func (r *rig) ask(ctx context.Context, answer any, args ...string) error {
	out, err := r.vipctl(ctx, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), answer); err != nil {
		return fmt.Errorf("reading the answer of vipctl %v: %w\n%s", args, err, out)
	}
	return nil
}

// end stops all programs, in the reverse order of their starts.
func (r *rig) end() error {
	var failures []error
	for i := len(r.started) - 1; i >= 0; i-- {
		p := r.started[i]
		select {
		case <-p.Done(): // the program has already exited, and the caller has reported that
		default:
			failures = append(failures, p.Stop(patience))
		}
	}
	return errors.Join(failures...)
}
