package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// overridePlace is the paragraph that says where an override is kept.
const overridePlace = "Where the service is in etcd, all nodes follow: --etcd names etcd, or the config does. Otherwise, and " +
	"with --socket, it is the daemon of this host that does it, for itself alone."

func nodeFlag() cli.Flag {
	return &cli.StringFlag{Name: "node", Usage: "every endpoint on this `NODE`, of all services"}
}

func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "a `TEXT` that is shown beside the override"}
}

func expiresFlag() cli.Flag {
	return &cli.DurationFlag{Name: "expires", Usage: "it is taken back by itself after `TIME`; 0: never"}
}

func drainVerb() *verb {
	return &verb{
		name: "drain", args: "SERVICE ADDRESS | --node NODE", brief: "no new connections to an endpoint; established ones live on",
		about: "Stops new connections to an endpoint, which ADDRESS or ADDRESS:PORT names, or to all endpoints on a node. " +
			"Connections that are open live on, without a bound unless --timeout gives one. The drain holds until " +
			"\"vipctl undrain\", also across restarts and reloads, or until --expires.\n\n" +
			overridePlace + "\n\n" +
			"With --wait it returns when the last connection has ended, in etcd's case on all nodes. Ctrl-C then ends the " +
			"waiting, not the drain.",
		example: "vipctl drain web 192.168.1.11 --wait --reason \"kernel update\"",
		flags: []cli.Flag{
			nodeFlag(),
			&cli.BoolFlag{Name: "wait", Usage: "return when the last connection has ended"},
			&cli.DurationFlag{Name: "timeout", Usage: "the daemon cuts what is left after `TIME`, such as 90s or 10m; 0: never"},
			reasonFlag(), expiresFlag(),
		},
		formats: []string{formTable, formJSON}, most: 2, fleet: true,
		complete: completeTarget, run: runDrain,
	}
}

func undrainVerb() *verb {
	return &verb{
		name: "undrain", args: "SERVICE ADDRESS | --node NODE", brief: "take a drain back",
		about: "Takes a drain back: the endpoint, or all endpoints on a node, get new connections again as far as health, " +
			"weight and locality allow. It takes the same names as drain. A weight that was set by hand stays; \"vipctl " +
			"weight\" with the weight that is written takes that back.\n\n" + overridePlace,
		example: "vipctl undrain web 192.168.1.11",
		flags:   []cli.Flag{nodeFlag()},
		formats: []string{formTable, formJSON}, most: 2, fleet: true,
		complete: completeTarget, run: runUndrain,
	}
}

func weightVerb() *verb {
	return &verb{
		name: "weight", args: "SERVICE ADDRESS N | --node NODE N", brief: "set the weight of an endpoint",
		about: fmt.Sprintf("Sets the weight of an endpoint, or of all endpoints on a node, to N, 0 to %d; 0: no new "+
			"connections. It wins over what is written, also across restarts and reloads. Setting the weight that is "+
			"written takes it back. The schedulers rr and lc look at no weight but 0.\n\n", balancer.MaxWeight) + overridePlace,
		example: "vipctl weight web 192.168.1.11 5",
		flags:   []cli.Flag{nodeFlag(), reasonFlag(), expiresFlag()},
		formats: []string{formTable, formJSON}, most: 3, fleet: true,
		complete: completeTarget, run: runWeight,
	}
}

// request reads what is meant, out of the first arguments or --node; more are the arguments behind it.
func (c *call) request(more int) (q api.OverrideRequest, err error) {
	q = api.OverrideRequest{
		Node: c.flags.String("node"), By: c.operator(), Reason: c.flags.String("reason"), Expires: c.flags.Duration("expires"),
	}
	args := len(c.args) - more
	switch {
	case q.Expires < 0:
		return q, wrongUse("--expires %s is below zero", q.Expires)
	case q.Node != "" && args > 0:
		return q, wrongUse("\"vipctl %s\" takes either SERVICE ADDRESS or --node NODE, not both; it goes: %s", c.verb.name, c.verb.usage())
	case q.Node != "" && args == 0:
		return q, nil
	case q.Node != "" || args != 2:
		return q, wrongUse("\"vipctl %s\" needs %s; for example: %s", c.verb.name, c.verb.args, c.verb.example)
	}
	q.Service, q.Address = balancer.Name(c.args[0]), c.args[1]
	if _, err := balancer.ParseTarget(q.Service, q.Address); err != nil {
		return q, wrongUse("%v", err)
	}
	return q, nil
}

// operator is who does it, for the record; "" where that is not known.
func (c *call) operator() string {
	name := c.getenv("SUDO_USER")
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	return name
}

// overrideAll sends the request and prints a line for each endpoint that it met: what done says of it.
func (c *call) overrideAll(q api.OverrideRequest, done func(api.OverrideTarget) string) (api.OverrideResult, error) {
	client, err := c.daemon()
	if err != nil {
		return api.OverrideResult{}, err
	}
	r, err := client.Override(c, q)
	switch {
	case err != nil:
		return r, err
	case len(r.Targets) == 0 && q.Node != "":
		return r, fmt.Errorf("no endpoint is on node %q", q.Node)
	case len(r.Targets) == 0:
		return r, fmt.Errorf("service %s has no endpoint %s", q.Service, q.Address)
	case c.format == formJSON:
		return r, c.printJSON(r)
	}
	var b strings.Builder
	for _, t := range r.Targets {
		fmt.Fprintf(&b, "%s/%s: %s\n", t.Service, t.Address, done(t))
	}
	return r, c.print(b.String())
}

func runWeight(c *call) error {
	q, err := c.request(1)
	if err != nil {
		return err
	}
	text := c.args[len(c.args)-1]
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > balancer.MaxWeight {
		return wrongUse("%q is not a weight: a whole number, 0 to %d", text, balancer.MaxWeight)
	}
	q.Weight = &n
	switch f, err := c.fleetOverride(q); {
	case err != nil:
		return err
	case f != nil:
		return f.weigh(n)
	}
	r, err := c.overrideAll(q, func(api.OverrideTarget) string { return fmt.Sprintf("weight %d", n) })
	if err == nil && n > 0 {
		c.noteUnweighted(r.Targets)
	}
	return err
}

// noteUnweighted says of which of the targets' services the scheduler does not look at weights. Where that can't be
// asked, there is no note.
func (c *call) noteUnweighted(targets []api.OverrideTarget) {
	client, err := c.daemon()
	if err != nil {
		return
	}
	frontends, err := client.Frontends(c)
	if err != nil {
		return
	}
	noted := map[balancer.Name]bool{}
	for _, f := range frontends {
		meant := slices.ContainsFunc(targets, func(t api.OverrideTarget) bool { return t.Service == f.Service })
		if meant && !noted[f.Service] && (f.Scheduler == balancer.RoundRobin || f.Scheduler == balancer.LeastConn) {
			noted[f.Service] = true
			c.noteUnweightedService(f.Service, f.Scheduler)
		}
	}
}

func (c *call) noteUnweightedService(name balancer.Name, by balancer.Scheduler) {
	fmt.Fprintf(c.stderr, "note: service %s is scheduled by %s, for which no weight but 0 counts\n", name, by)
}

func runUndrain(c *call) error {
	q, err := c.request(0)
	if err != nil {
		return err
	}
	draining := false
	q.Draining = &draining
	switch f, err := c.fleetOverride(q); {
	case err != nil:
		return err
	case f != nil:
		return f.undrain()
	}
	client, err := c.daemon()
	if err != nil {
		return err
	}
	before, err := client.Endpoints(c)
	if err != nil {
		return err
	}
	_, err = c.overrideAll(q, func(t api.OverrideTarget) string { return undrained(t, before) })
	return err
}

// undrained says what the end of a drain came to for a target, whose endpoints were as in before.
func undrained(t api.OverrideTarget, before []api.Endpoint) string {
	at := slices.DeleteFunc(slices.Clone(before), func(e api.Endpoint) bool { return e.Service != t.Service || !isAt(e.Address, t.Address) })
	text := "drain taken back"
	if len(at) > 0 && !slices.ContainsFunc(at, drains) {
		text = "it was not draining"
	}
	i := slices.IndexFunc(at, func(e api.Endpoint) bool { return e.Override != nil && e.Override.Weight != nil })
	if i >= 0 {
		text += fmt.Sprintf("; the weight %d that was set by hand stays: \"vipctl weight %s %s %d\" takes it back",
			*at[i].Override.Weight, t.Service, t.Address, at[i].Configured)
	}
	return text
}

// drains reports whether somebody drains the endpoint, by hand or in the file.
func drains(e api.Endpoint) bool {
	return e.State == balancer.Draining || e.Override != nil && e.Override.Draining != nil && *e.Override.Draining
}

func runDrain(c *call) error {
	q, err := c.request(0)
	if err != nil {
		return err
	}
	if q.Timeout = c.flags.Duration("timeout"); q.Timeout < 0 {
		return wrongUse("--timeout %s is below zero", q.Timeout)
	}
	draining := true
	q.Draining = &draining
	done := "draining"
	if q.Timeout > 0 {
		done += fmt.Sprintf("; what is left is cut in %s", q.Timeout)
	}
	if q.Expires > 0 {
		done += fmt.Sprintf("; taken back in %s", q.Expires)
	}
	switch f, err := c.fleetOverride(q); {
	case err != nil:
		return err
	case f != nil:
		return f.drain(done)
	}
	r, err := c.overrideAll(q, func(api.OverrideTarget) string { return done })
	if err != nil || !c.flags.Bool("wait") {
		return err
	}
	return c.await(&r)
}

// The pace of waiting for a drain, and how long a daemon may be away meanwhile.
const (
	drainInterval = 250 * time.Millisecond
	drainPatience = 15 * time.Second
)

// await returns when the targets have no connections and get no new ones. It asks again and again, and does not follow
// changes: the end of a connection is none. A daemon that is away for a while is waited for.
func (c *call) await(r *api.OverrideResult) error {
	client, err := c.daemon()
	if err != nil {
		return err
	}
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	progress := &progress{call: c}
	answered := c.now()
	left := uint64(0)
	for {
		n, closed, err := c.remaining(client, r.Targets)
		switch {
		case err == nil:
			answered = c.now()
			if left = n; closed && left == 0 {
				progress.end()
				return c.drained(r)
			}
			progress.show(left)
		case c.Err() == nil && c.now().Sub(answered) > drainPatience:
			progress.end()
			return fmt.Errorf("waiting for the drain, which stays in place: %w", err)
		}
		select {
		case <-c.Done():
			progress.end()
			return c.abandoned(left, "")
		case <-tick.C:
		}
	}
}

func (c *call) drained(r *api.OverrideResult) error {
	if c.format == formJSON {
		return nil
	}
	return c.print(fmt.Sprintf("drained: %s, no connections left\n", count(len(r.Targets), "endpoint")))
}

// abandoned says what stays when the waiting ends before the drain. Where says on which nodes.
func (c *call) abandoned(left uint64, where string) error {
	what := strings.Join(c.args, " ")
	if node := c.flags.String("node"); node != "" {
		what = "--node " + node
	}
	why := "interrupted"
	if !errors.Is(c.Err(), context.Canceled) {
		why = c.Err().Error()
	}
	if where != "" {
		where = " (" + where + ")"
	}
	return fmt.Errorf("%s with %s left%s; the drain stays in place, \"vipctl undrain %s\" takes it back", why, count(left, "connection"), where, what)
}

// remaining counts the connections of the targets, and reports whether all of them are closed to new ones. It takes the
// counts of the endpoints. Those are cheap, but know nothing of endpoints and services whose definitions are gone: where
// they are zero, the connections themselves have the last word.
func (c *call) remaining(client *api.Client, targets []api.OverrideTarget) (left uint64, closed bool, err error) {
	endpoints, err := client.Endpoints(c)
	if err != nil {
		return 0, false, err
	}
	left, closed = counted(endpoints, targets)
	if !closed || left > 0 {
		return left, closed, nil
	}
	conns, err := client.Connections(c, "") // of all services: the daemon knows nothing of one that is gone
	return open(conns, targets), closed, err
}

// unused is the state of an endpoint at a port that its service has no frontend for.
const unused balancer.BackendState = "unused"

// counted adds up what the endpoints at the targets say.
func counted(endpoints []api.Endpoint, targets []api.OverrideTarget) (left uint64, closed bool) {
	closed = true
	for i := range endpoints {
		e := &endpoints[i]
		if isAtAny(e.Service, e.Address, targets) {
			left += e.Active
			closed = closed && (e.State == balancer.Draining || e.State == balancer.Removed || e.State == unused)
		}
	}
	return left, closed
}

// open counts the connections to the targets but for those that are over, which the counts of active ones leave out too: the
// kernel remembers a closed TCP connection for minutes.
func open(conns []api.Connection, targets []api.OverrideTarget) (left uint64) {
	for i := range conns {
		over := conns[i].State == "time-wait" || conns[i].State == "close"
		if !over && isAtAny(conns[i].Service, conns[i].Backend.String(), targets) {
			left++
		}
	}
	return left
}

func isAtAny(service balancer.Name, endpoint string, targets []api.OverrideTarget) bool {
	return slices.ContainsFunc(targets, func(t api.OverrideTarget) bool {
		return t.Service == service && isAt(endpoint, t.Address)
	})
}

// isAt reports whether an endpoint's ADDRESS:PORT is at target: ADDRESS, or exactly that ADDRESS:PORT.
func isAt(endpoint, target string) bool {
	at, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return endpoint == target
	}
	t, err := balancer.ParseTarget("", target)
	return err == nil && t.Addr == at.Addr().Unmap() && (t.Port == at.Port() || t.Port == 0)
}

// progress shows how many connections are left, on a terminal.
type progress struct {
	*call
	width int
}

func (p *progress) show(left uint64) { p.text(count(left, "connection") + " left") }

// text shows what fits in a line.
func (p *progress) text(text string) {
	if !p.errTerminal {
		return
	}
	if runes := []rune(text); len(runes) > lineWidth {
		text = string(runes[:lineWidth-3]) + "..."
	}
	fmt.Fprintf(p.stderr, "\r%-*s", p.width, text)
	p.width = max(p.width, len(text))
}

// end wipes the line.
func (p *progress) end() {
	if p.width > 0 {
		_, _ = io.WriteString(p.stderr, "\r"+strings.Repeat(" ", p.width)+"\r")
	}
}

// completeTarget lists services, then the addresses of the service's endpoints.
func completeTarget(c *call, before []string) []string {
	fleet := c.overridesFleet()
	switch {
	case len(before) == 0 && fleet:
		return c.fleetNames()
	case len(before) == 0:
		return c.serviceNames()
	case len(before) == 1 && fleet:
		return c.fleetAddresses(balancer.Name(before[0]))
	case len(before) == 1:
		return c.addresses(balancer.Name(before[0]))
	}
	return nil
}

// addresses asks the daemon for the addresses of a service's endpoints; none if it does not answer.
func (c *call) addresses(service balancer.Name) (out []string) {
	client, err := c.daemon()
	if err != nil {
		return nil
	}
	endpoints, err := client.Endpoints(c)
	if err != nil {
		return nil
	}
	for _, e := range endpoints {
		if at, err := netip.ParseAddrPort(e.Address); err == nil && e.Service == service {
			out = append(out, at.Addr().String())
		}
	}
	return out
}

// serviceNames asks the daemon for the names of all services; none if it does not answer.
func (c *call) serviceNames() []string {
	client, err := c.daemon()
	if err != nil {
		return nil
	}
	services, err := client.Services(c)
	if err != nil {
		return nil
	}
	out := make([]string, len(services))
	for i, s := range services {
		out[i] = string(s.Name)
	}
	return out
}
