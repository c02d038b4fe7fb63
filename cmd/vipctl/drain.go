package main

import (
	"fmt"
	"net/netip"
	"os/user"
	"slices"
	"strconv"
	"strings"

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
	return &cli.StringFlag{Name: "reason", Usage: "why, a `TEXT` that is kept with the change and shown in events"}
}

func forceFlag() cli.Flag {
	return &cli.BoolFlag{Name: "force", Usage: "also where a service has no usable endpoint left then"}
}

func expiresFlag() cli.Flag {
	return &cli.DurationFlag{Name: "expires", Usage: "it is taken back by itself after `TIME`; 0: never"}
}

func drainVerb() *verb {
	return &verb{
		name: "drain", args: "SERVICE ADDRESS | --node NODE", brief: "no new connections to an endpoint; established ones live on",
		about: "Stops new connections to an endpoint, which ADDRESS or ADDRESS:PORT names (SERVICE/ADDRESS, as \"vipctl get " +
			"endpoints -o name\" prints it, will do as well), or to all endpoints on a node. " +
			"Connections that are open live on, without a bound unless --timeout gives one. The drain holds until " +
			"\"vipctl undrain\", also across restarts and reloads, or until --expires. The last usable endpoint of a service is " +
			"drained only with --force.\n\n" +
			overridePlace + "\n\n" +
			"With --wait it returns when the last connection has ended, in etcd's case on all nodes. Ctrl-C then ends the " +
			"waiting, not the drain.",
		example: "vipctl drain web 192.168.1.11 --wait --reason \"kernel update\"",
		flags: []cli.Flag{
			nodeFlag(),
			&cli.BoolFlag{Name: "wait", Usage: "return when the last connection has ended"},
			&cli.DurationFlag{Name: "timeout", Usage: "the daemon cuts what is left after `TIME`, such as 90s or 10m; 0: never"},
			reasonFlag(), expiresFlag(), forceFlag(),
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
			"weight SERVICE ADDRESS -\" takes that back.\n\n" + overridePlace,
		example: "vipctl undrain web 192.168.1.11",
		flags:   []cli.Flag{nodeFlag(), reasonFlag()},
		formats: []string{formTable, formJSON}, most: 2, fleet: true,
		complete: completeTarget, run: runUndrain,
	}
}

func weightVerb() *verb {
	return &verb{
		name: "weight", args: "SERVICE ADDRESS N|- | --node NODE N|-", brief: "set the weight of an endpoint, or take it back",
		about: fmt.Sprintf("Sets the weight of an endpoint, or of all endpoints on a node, to N, 0 to %d; 0 means no new "+
			"connections. It wins over what is written, also across restarts and reloads, until \"-\" in place of N takes it "+
			"back. The last usable endpoint of a service gets 0 only with --force. The schedulers %s share nothing by weight.\n\n", balancer.MaxWeight, unweighted()) + overridePlace,
		example: "vipctl weight web 192.168.1.11 5",
		flags:   []cli.Flag{nodeFlag(), reasonFlag(), expiresFlag(), forceFlag()},
		formats: []string{formTable, formJSON}, most: 3, fleet: true,
		complete: completeTarget, run: runWeight,
	}
}

// unweighted lists the schedulers that share nothing by weight.
func unweighted() string {
	names := slices.DeleteFunc(balancer.Scheduler("").Values(), func(s string) bool { return balancer.Scheduler(s).SharesByWeight() })
	return strings.Join(names, ", ")
}

// request reads what is meant, out of the first arguments or --node; more are the arguments behind it.
func (c *call) request(more int) (q api.OverrideRequest, err error) {
	q = api.OverrideRequest{
		Node: c.flags.String("node"), By: c.operator(), Reason: c.flags.String("reason"), Expires: c.flags.Duration("expires"), Force: c.flags.Bool("force"),
	}
	at := endpointArgs(c.args[:max(0, len(c.args)-more)])
	args := len(at)
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
	q.Service, q.Address = balancer.Name(at[0]), at[1]
	if _, err := balancer.ParseTarget(q.Service, q.Address); err != nil {
		return q, wrongUse("%v", err)
	}
	return q, nil
}

// endpointArgs takes SERVICE/ADDRESS, which "get endpoints -o name" prints, for SERVICE and ADDRESS.
func endpointArgs(args []string) []string {
	if len(args) == 1 {
		if service, address, ok := strings.Cut(args[0], "/"); ok {
			return []string{service, address}
		}
	}
	return args
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
	switch {
	case text == "-":
		n = balancer.TakenBack
	case err != nil || n < 0 || n > balancer.MaxWeight:
		return wrongUse("%q is not a weight: a whole number, 0 to %d, or - to take back the one that was set", text, balancer.MaxWeight)
	}
	q.Weight = &n
	switch f, err := c.fleetOverride(q); {
	case err != nil:
		return err
	case f != nil:
		return f.weigh(n)
	}
	r, err := c.overrideAll(q, func(api.OverrideTarget) string { return weighed(n) })
	switch {
	case err != nil || n == balancer.TakenBack:
	case n > 0:
		c.noteUnweighted(r.Targets)
	default:
		c.noteIdle(r.Targets)
	}
	return err
}

// weighed says what a weight comes to.
func weighed(n int) string {
	if n == balancer.TakenBack {
		return "the weight that is written counts again"
	}
	return fmt.Sprintf("weight %d", n)
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
		if meant && !noted[f.Service] && !f.Scheduler.SharesByWeight() {
			noted[f.Service] = true
			c.noteUnweightedService(f.Service, f.Scheduler)
		}
	}
}

func (c *call) noteUnweightedService(name balancer.Name, by balancer.Scheduler) {
	fmt.Fprintf(c.stderr, "note: service %s is scheduled by %s, which shares nothing by weight; only weight 0 keeps new connections away\n", name, by)
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
	var said []*balancer.Override
	for _, e := range at {
		said = append(said, e.Override)
	}
	return undrainedText(t.Service, t.Address, len(at) == 0 || slices.ContainsFunc(at, drains), said)
}

// undrainedText says what the end of a drain came to for an endpoint of which overrides said something, whether it drained or not.
func undrainedText(service balancer.Name, address string, drained bool, said []*balancer.Override) string {
	text := "drain taken back"
	if !drained {
		text = "it was not draining"
	}
	if i := slices.IndexFunc(said, func(o *balancer.Override) bool { return o != nil && o.Weight != nil }); i >= 0 {
		text += fmt.Sprintf("; the weight %d that was set by hand stays: \"vipctl weight %s %s -\" takes it back", *said[i].Weight, service, address)
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
	if err != nil {
		return err
	}
	c.noteIdle(r.Targets)
	if !c.flags.Bool("wait") {
		return nil
	}
	return c.await(&r)
}

// noteIdle says which of the targets' services have no endpoint any more that takes new connections. Where that can't be asked,
// there is no note.
func (c *call) noteIdle(targets []api.OverrideTarget) {
	client, err := c.daemon()
	if err != nil {
		return
	}
	s, err := client.Status(c)
	if err != nil {
		return
	}
	for _, p := range s.Problems {
		if p.Kind == balancer.Idle && slices.ContainsFunc(targets, func(t api.OverrideTarget) bool { return t.Service == p.Service }) {
			fmt.Fprintf(c.stderr, "note: service %s: %s\n", p.Service, p.PortText())
		}
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
	for _, e := range c.endpointsOf(service) {
		if at, err := netip.ParseAddrPort(e.Address); err == nil {
			out = append(out, at.Addr().String())
		}
	}
	return out
}

// endpointsOf asks the daemon for a service's endpoints; none if it does not answer.
func (c *call) endpointsOf(service balancer.Name) []api.Endpoint {
	client, err := c.daemon()
	if err != nil {
		return nil
	}
	all, err := client.Endpoints(c)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(e api.Endpoint) bool { return e.Service != service })
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
