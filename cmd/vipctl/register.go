package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/store/etcd/client"
	"vipd/store/etcd/definitions"
	"vipd/store/etcd/schema"
)

// These are the defaults for "vipctl register".
const (
	defaultTTL       = 10 * time.Second
	defaultKillAfter = 30 * time.Second
	// defaultDrain limits how long a drain may last if the service can't be read.
	defaultDrain = 30 * time.Second
	// leaveTimeout is the timeout for the last requests to etcd.
	leaveTimeout = 5 * time.Second
)

func registerVerb() *cli.Verb {
	return &cli.Verb{
		Name: "register", Args: "SERVICE ADDRESS[:PORT] [-- COMMAND...]", Brief: "keep an endpoint in etcd while this command, or COMMAND, runs",
		About: `Adds an endpoint of SERVICE to etcd under a lease, and keeps it until Ctrl-C or
SIGTERM. If vipctl or its host dies, the endpoint disappears after --ttl. While
etcd is unreachable, vipctl keeps trying, and then registers again. Messages
are written to stderr.

With COMMAND, the endpoint is registered while COMMAND runs, and the exit code
is COMMAND's. Ctrl-C or SIGTERM first drains the endpoint, so nodes make no new
connections to it. When none are open, or after --timeout, vipctl removes the endpoint and sends SIGTERM to COMMAND, and SIGKILL after
--kill-after. A second signal skips the drain, and a third signal kills
COMMAND. SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded. COMMAND runs in a
separate process group, so Ctrl-C reaches only vipctl; under systemd, set
KillMode=mixed for the same reason.

The endpoint's key is PREFIX/endpoints/SERVICE/ID. If another vipctl holds ID,
the new registration replaces it, and the other vipctl reports this.`,
		Example: "vipctl register web 192.168.1.11:8080 -- /usr/sbin/nginx -g \"daemon off;\"",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "weight", Value: 1, Usage: fmt.Sprintf("set the endpoint's weight to `NUMBER`, from 0 to %d", balancer.MaxWeight)},
			&cli.DurationFlag{Name: "ttl", Value: defaultTTL, Usage: "remove the endpoint if it is not renewed for this `TIME`"},
			&cli.StringFlag{Name: "id", Usage: "use `ID` as the endpoint's name in the service; default: address and port"},
			nodeNameFlag("set the endpoint's node to `NODE`"),
			zoneFlag("set the endpoint's zone to `ZONE`"),
			&cli.BoolFlag{Name: "backup", Usage: "use the endpoint only while no other endpoint is up"},
			&cli.IntFlag{Name: "max-connections", Usage: "allow at most `NUMBER` connections from each vipd to the endpoint; 0 means no limit"},
			&cli.DurationFlag{Name: "timeout", Usage: "limit the drain to this `TIME`; default: the service's drain_timeout"},
			&cli.DurationFlag{Name: "kill-after", Value: defaultKillAfter, Usage: "kill COMMAND if it is still running this `TIME` after SIGTERM"},
		},
		Fleet: true, MaxArgs: cli.WithCommand,
		Complete: cli.InTurn(fleetNames),
		Run:      runRegister,
	}
}

func nodeNameFlag(usage string) cli.Flag { return &cli.StringFlag{Name: "node", Usage: usage} }

// registration keeps an endpoint registered in etcd.
type registration struct {
	*cli.Call
	id        balancer.EndpointID
	target    balancer.Target
	registrar *definitions.Registrar
	ttl       time.Duration
	// stopRun stops renewing the registration. It is nil if nothing renews it.
	stopRun func()

	mu sync.Mutex // guards the fields below
	// registered reports whether the endpoint was ever registered. draining reports whether the
	// drain has started. drained is the revision at which etcd marked the endpoint as draining, or
	// 0 if it is unknown.
	registered bool
	draining   bool
	drained    int64
	// reportedAt is the time when the current failure was last printed, or zero if there is no
	// failure.
	reportedAt time.Time
}

func runRegister(c *cli.Call) error {
	own, command := c.Args, []string(nil)
	if i := slices.Index(c.Args, "--"); i >= 0 {
		if own, command = c.Args[:i], c.Args[i+1:]; len(command) == 0 {
			return cli.WrongUse("no command follows --; usage: %s", c.Verb.Usage())
		}
	}
	own = endpointArgs(own)
	switch {
	case len(own) < 2:
		return cli.WrongUse("\"vipctl register\" needs SERVICE ADDRESS[:PORT]; for example: %s", c.Verb.Example)
	case len(own) > 2:
		return cli.WrongUse("\"vipctl register\": unexpected argument %q; put -- before a command: %s", own[2], c.Verb.Usage())
	case c.Flags.Duration("timeout") < 0 || c.Flags.Duration("kill-after") < 0:
		return cli.WrongUse("--timeout and --kill-after can't be below zero")
	}
	r, err := newRegistration(c, own[0], own[1])
	if err != nil {
		return err
	}
	if command != nil {
		return r.runCommand(command)
	}
	r.run()
	<-c.Done()
	return r.leave()
}

func newRegistration(c *cli.Call, service, address string) (*registration, error) {
	name := balancer.Name(plainService(service))
	t, err := balancer.ParseTarget(name, address)
	if err != nil {
		return nil, cli.WrongUse("%v", err)
	}
	zone, err := zone(c)
	if err != nil {
		return nil, err
	}
	e := balancer.Endpoint{
		Address: t.Addr, Port: t.Port, Weight: c.Flags.Int("weight"), Node: c.Flags.String("node"), Zone: zone,
		Backup: c.Flags.Bool("backup"), MaxConnections: c.Flags.Int("max-connections"),
	}
	id := balancer.EndpointID{Service: name, ID: t.Address()}
	if given := c.Flags.String("id"); c.Flags.IsSet("id") {
		id.ID = given
	}
	switch {
	case e.Weight < 0 || e.Weight > balancer.MaxWeight:
		return nil, cli.WrongUse("%d is not a weight: use a whole number from 0 to %d", e.Weight, balancer.MaxWeight)
	case e.MaxConnections < 0:
		return nil, cli.WrongUse("--max-connections %d is below zero", e.MaxConnections)
	}
	w, err := c.Etcd()
	if err != nil {
		return nil, err
	}
	r := &registration{Call: c, id: id, target: t, ttl: c.Flags.Duration("ttl")}
	if r.registrar, err = w.Registrar(id, e, r.ttl); err != nil {
		return nil, cli.WrongUse("%v", err)
	}
	r.registrar.Report = r.report
	return r, nil
}

// run keeps the endpoint registered in the background until stop is called.
func (r *registration) run() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context))
	var running sync.WaitGroup
	running.Go(func() { r.registrar.Run(ctx) })
	r.stopRun = func() { cancel(); running.Wait() }
}

func (r *registration) stop() {
	if r.stopRun != nil {
		r.stopRun()
		r.stopRun = nil
	}
}

// report prints whether the endpoint is registered. It runs in the registrar's goroutine.
func (r *registration) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.trouble(err)
		return
	}
	r.reportedAt = time.Time{}
	switch {
	case r.draining:
		r.drained = r.registrar.Revision()
	case r.registered:
		r.Note("%s is registered again", r.name())
	default:
		r.Note("%s is registered", r.name())
		r.registered = true
		r.noteUnknownService()
	}
}

// trouble prints the reason why the endpoint is not registered, at most once per repeatInterval. It
// always prints that another vipctl holds the registration.
func (r *registration) trouble(err error) {
	held := errors.Is(err, definitions.ErrHeld)
	if !held && !r.reportedAt.IsZero() && r.Now().Sub(r.reportedAt) < repeatInterval {
		return
	}
	r.reportedAt = r.Now()
	switch {
	case held:
		r.Note("%v", err)
	case r.registered:
		r.Note("%s: %v; trying again; the endpoint stays until its lease ends", r.name(), err)
	default:
		r.Note("%s is not registered: %v; trying again", r.name(), err)
	}
}

func (r *registration) name() string { return string(r.id.Service) + "/" + r.id.ID }

// noteUnknownService prints a note if etcd does not have the service. It prints nothing if the
// service can't be read.
func (r *registration) noteUnknownService() {
	ctx, cancel := context.WithTimeout(r, client.MinTTL/2) // the lease is not renewed during the read
	defer cancel()
	if s, err := r.Writer.Service(ctx, r.id.Service); err == nil && s == nil {
		r.Hint("there is no service %s in etcd yet, so no node uses the endpoint", r.id.Service)
	}
}

// leave removes the endpoint from etcd.
func (r *registration) leave() error {
	r.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context), leaveTimeout)
	defer cancel()
	if !r.registrar.Placed() { // a write without an answer may have reached etcd
		return r.left(r.registrar.Leave(ctx))
	}
	// The endpoint drains first. If its lease has expired, mark it as draining again: hosts may
	// still use the endpoint, and must learn that it left on purpose.
	err := r.registrar.Drain(ctx)
	if errors.Is(err, definitions.ErrHeld) {
		return nil
	}
	if err == nil {
		err = r.registrar.Leave(ctx)
	}
	if err == nil {
		r.Note("%s is removed", r.name())
	}
	return r.left(err)
}

// left adds to err that the endpoint expires with its lease. It returns nil if err is nil.
func (r *registration) left(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("removing %s: %w; its endpoint expires with its lease, in %s at most", r.name(), err, r.ttl)
}

// drain marks the endpoint as draining in etcd, and waits until no node has a connection to it. It
// stops waiting after the drain timeout, or when ctx is done.
func (r *registration) drain(ctx context.Context) {
	r.stop()
	if !r.registrar.Placed() {
		return
	}
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	err := r.markDraining(ctx)
	if errors.Is(err, definitions.ErrHeld) {
		r.Note("%s is not drained: %v", r.name(), err)
		return
	}
	r.run() // renews the lease, and retries the write that marks the endpoint as draining
	defer r.stop()
	timeout, known := r.drainTimeout(ctx)
	why := ""
	switch {
	case err != nil:
		why = fmt.Sprintf(" (%v)", err)
	case !known:
		why = " (drain_timeout of the service can't be read)"
	}
	r.Note("%s drains: waiting until no node has a connection to it, %s at most%s", r.name(), timeout, why)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r.await(ctx)
}

// markDraining marks the endpoint as draining in etcd, and stores the revision.
func (r *registration) markDraining(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	err := r.registrar.Drain(ctx)
	if err == nil {
		r.mu.Lock()
		r.drained = r.registrar.Revision()
		r.mu.Unlock()
	}
	return err
}

// drainTimeout returns the maximum duration of the drain: --timeout, or the service's
// drain_timeout. known is false if the service can't be read.
func (r *registration) drainTimeout(ctx context.Context) (timeout time.Duration, known bool) {
	if r.Flags.IsSet("timeout") {
		return r.Flags.Duration("timeout"), true
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	s, err := r.Writer.Service(ctx, r.id.Service)
	switch {
	case err != nil || s != nil && s.Service == nil:
		return defaultDrain, false
	case s == nil:
		return 0, true // without the service, no node uses the endpoint
	}
	return s.Service.DrainTimeout, true
}

// await polls the nodes until none has a connection to the endpoint, or ctx is done. If the nodes
// can't be read, or no node is live, it waits until ctx is done.
func (r *registration) await(ctx context.Context) {
	v := &revisionWait{drains: func(d schema.NodeDrain) bool {
		return isDrain(r.target, d) || d.Service == r.target.Service && d.Address == r.target.Addr.String()
	}}
	tick := time.NewTicker(fleetInterval)
	defer tick.Stop()
	var lag []laggard
	blind := false
	for {
		r.mu.Lock()
		v.revision = r.drained
		r.mu.Unlock()
		if v.revision > 0 {
			nodes, err := r.Writer.Statuses(ctx)
			if err == nil {
				lag = v.awaited(nodes, r.Now())
			} else if ctx.Err() == nil && !blind {
				blind = true
				r.Note("the nodes with connections can't be read: %v", err)
			}
			if err == nil && len(lag) == 0 && len(v.done) > 0 {
				r.Note("no node has a connection to %s now", r.name())
				return
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && len(lag) > 0 {
				r.Note("%s: no longer waiting: %s", r.name(), names(lag))
			}
			return
		case <-tick.C:
		}
	}
}
