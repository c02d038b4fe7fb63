package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/wording"
)

// overridePlace is a help paragraph about where an override is stored.
const overridePlace = "If the service is in etcd (set with --etcd or in the configuration), the change applies to all nodes. Otherwise, and with --socket, it " +
	"applies only to this host's daemon."

func nodeFlag() cli.Flag {
	return &cli.StringFlag{Name: "node", Usage: "change all endpoints on this `NODE`, in all services"}
}

func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "record `TEXT` as the reason for the change; events show the reason"}
}

func forceFlag() cli.Flag {
	return &cli.BoolFlag{Name: "force", Usage: "continue even if a service then has no usable endpoint, or fewer than min_usable"}
}

func expiresFlag() cli.Flag {
	return &cli.DurationFlag{Name: "expires", Usage: "undo the change after `TIME`; 0 means never"}
}

func drainVerb() *cli.Verb {
	return &cli.Verb{
		Name: "drain", Args: "SERVICE ADDRESS | --node NODE", Brief: "stop new connections to an endpoint",
		About: `Stops new connections to an endpoint, to all addresses of a DNS name, or to all
endpoints on a node. ADDRESS may include the port; the form SERVICE/ADDRESS,
which "vipctl get endpoints -o name" prints, also works. Open connections
continue, for at most --timeout if it is given. The drain lasts until "vipctl
undrain" or --expires, across restarts and reloads. If a service would then
have no usable endpoint, or fewer than min_usable, --force is required.

With --node, if that host owns VIPs (hold = "one"), other hosts first take them
over, and the host is on standby until it is undrained. With VRRP, run the
command on that host.

` + overridePlace + `

With --wait, the command returns when the last connection has ended, on all
nodes if the service is in etcd. Ctrl-C then ends only the wait.`,
		Example: "vipctl drain web 192.168.1.11 --wait --reason \"kernel update\"",
		Flags: []cli.Flag{
			nodeFlag(),
			&cli.BoolFlag{Name: "wait", Usage: "wait until the last connection has ended"},
			&cli.DurationFlag{Name: "timeout", Usage: "cut the remaining connections after `TIME`, such as 90s or 10m; 0 means never"},
			reasonFlag(), expiresFlag(), forceFlag(),
		},
		Formats: []string{cli.FormTable, cli.FormJSON}, MaxArgs: 2, Fleet: true,
		Complete: cli.InTurn(namesToOverride, addressesToOverride), Run: runDrain,
	}
}

func undrainVerb() *cli.Verb {
	return &cli.Verb{
		Name: "undrain", Args: "SERVICE ADDRESS | --node NODE", Brief: "end a drain",
		About: `Ends a drain: the endpoint, or all endpoints on a node, get new connections
again if health, weight and locality allow. It accepts the same names as
drain. A weight that was set manually stays; "vipctl weight SERVICE ADDRESS -"
removes it.

` + overridePlace,
		Example: "vipctl undrain web 192.168.1.11",
		Flags:   []cli.Flag{nodeFlag(), reasonFlag()},
		Formats: []string{cli.FormTable, cli.FormJSON}, MaxArgs: 2, Fleet: true,
		Complete: cli.InTurn(namesToOverride, addressesToOverride), Run: runUndrain,
	}
}

func weightVerb() *cli.Verb {
	return &cli.Verb{
		Name: "weight", Args: "SERVICE ADDRESS N|- | --node NODE N|-", Brief: "set the weight of an endpoint, or restore the configured weight",
		About: `Sets the weight of an endpoint, or of all endpoints on a node, to N, from 0 to
` + strconv.Itoa(balancer.MaxWeight) + `. 0 means no new connections. This weight overrides the configured
weight, across restarts and reloads, until "-" instead of N removes it. If a
service would then have no usable endpoint, or fewer than min_usable, --force
is required. The schedulers ` + unweighted() + ` ignore weights.

` + overridePlace,
		Example: "vipctl weight web 192.168.1.11 5",
		Flags:   []cli.Flag{nodeFlag(), reasonFlag(), expiresFlag(), forceFlag()},
		Formats: []string{cli.FormTable, cli.FormJSON}, MaxArgs: 3, Fleet: true,
		Complete: cli.InTurn(namesToOverride, addressesToOverride), Run: runWeight,
	}
}

func unweighted() string {
	names := slices.DeleteFunc(balancer.Scheduler("").Values(), func(s string) bool { return balancer.Scheduler(s).SharesByWeight() })
	return strings.Join(names, ", ")
}

// request reads the targets from --node or from the first arguments. more is the number of
// arguments after the targets.
func request(c *cli.Call, more int) (q api.OverrideRequest, err error) {
	q = api.OverrideRequest{
		Node: c.Flags.String("node"), By: operator(c), Reason: c.Flags.String("reason"), Expires: c.Flags.Duration("expires"), Force: c.Flags.Bool("force"),
	}
	at := endpointArgs(c.Args[:max(0, len(c.Args)-more)])
	args := len(at)
	switch {
	case q.Expires < 0:
		return q, cli.WrongUse("--expires %s is below zero", q.Expires)
	case q.Node != "" && args > 0:
		return q, cli.WrongUse("\"vipctl %s\" needs either SERVICE ADDRESS or --node NODE, not both; usage: %s", c.Verb.Name, c.Verb.Usage())
	case q.Node != "" && args == 0:
		return q, nil
	case q.Node != "" || args != 2:
		return q, cli.WrongUse("\"vipctl %s\" needs %s; for example: %s", c.Verb.Name, c.Verb.Args, c.Verb.Example)
	}
	q.Service, q.Address = balancer.Name(at[0]), at[1]
	if _, _, err := balancer.ParseEndpoint(q.Service, q.Address); err != nil {
		if q.Address = lookup.HostName(q.Address); q.Address == "" {
			return q, cli.WrongUse("%v", err)
		}
	}
	return q, nil
}

// endpointArgs returns SERVICE and ADDRESS. A single argument is SERVICE/ADDRESS, as "get endpoints
// -o name" prints it. The first of two arguments may also be service/NAME.
func endpointArgs(args []string) []string {
	if len(args) == 1 {
		if service, address, ok := strings.Cut(args[0], "/"); ok {
			return []string{service, address}
		}
	}
	if len(args) == 2 {
		return []string{plainService(args[0]), args[1]}
	}
	return args
}

// operator returns the user's name for the change history, or "" if it is unknown.
func operator(c *cli.Call) string {
	name := c.Getenv("SUDO_USER")
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	return name
}

func runWeight(c *cli.Call) error {
	q, err := request(c, 1)
	if err != nil {
		return err
	}
	text := c.Args[len(c.Args)-1]
	n, err := strconv.Atoi(text)
	done := fmt.Sprintf("weight %d", n)
	switch {
	case text == "-":
		n, done = balancer.ResetWeight, "the configured weight applies again"
	case err != nil || n < 0 || n > balancer.MaxWeight:
		return cli.WrongUse("%q is not a weight: use a whole number from 0 to %d, or - for the configured weight", text, balancer.MaxWeight)
	}
	q.Weight = &n
	done += until(q)
	o, err := newOverrider(c, q)
	if err != nil {
		return err
	}
	err = o.override(func(api.OverrideTarget) string { return done })
	if err == nil && n > 0 {
		by := o.schedulers()
		for _, name := range slices.Sorted(maps.Keys(by)) {
			if !by[name].SharesByWeight() {
				c.Hint("service %s uses the scheduler %s, which ignores weights; only weight 0 has an effect: it stops new connections", name, by[name])
			}
		}
	}
	return err
}

// until describes when a change expires. It returns "" if the change does not expire.
func until(q api.OverrideRequest) string {
	if q.Expires == 0 {
		return ""
	}
	return fmt.Sprintf("; expires in %s", q.Expires)
}

func runUndrain(c *cli.Call) error {
	q, err := request(c, 0)
	if err != nil {
		return err
	}
	draining := false
	q.Draining = &draining
	o, err := nodeOverrider(c, q)
	if o == nil || err != nil {
		return err
	}
	return o.override(o.undrained)
}

// nodeOverrider is like newOverrider for a node that may own VIPs. The node enters standby before
// its endpoints are drained, and leaves standby before they are undrained. It returns nil if the
// node has no endpoints.
func nodeOverrider(c *cli.Call, q api.OverrideRequest) (overrider, error) {
	if q.Node != "" && c.OwnsByVRRP() {
		if left, err := drainByVRRP(c, q.Node, *q.Draining); !left || err != nil {
			return nil, err
		}
		return newOverrider(c, q)
	}
	o, err := newOverrider(c, q)
	_, hasNone := errors.AsType[*lookup.NoEndpointsError](err)
	if err != nil && !hasNone || q.Node == "" || !c.OverridesInEtcd() {
		return o, err
	}
	owns, failed := takesPart(c, q.Node)
	if failed != nil || !owns {
		return o, cmp.Or(err, failed)
	}
	if failed := drainVIPs(c, q.Node, *q.Draining); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, nil
	}
	return o, nil
}

func runDrain(c *cli.Call) error {
	q, err := request(c, 0)
	if err != nil {
		return err
	}
	if q.Timeout = c.Flags.Duration("timeout"); q.Timeout < 0 {
		return cli.WrongUse("--timeout %s is below zero", q.Timeout)
	}
	draining := true
	q.Draining = &draining
	done := "draining"
	if q.Timeout > 0 {
		done += fmt.Sprintf("; remaining connections are cut in %s", q.Timeout)
	}
	done += until(q)
	o, err := nodeOverrider(c, q)
	if o == nil || err != nil {
		return err
	}
	err = o.override(func(api.OverrideTarget) string { return done })
	if err != nil || !c.Flags.Bool("wait") {
		return err
	}
	return o.await()
}

// overrider changes overrides, either in this host's daemon for this host alone, or in etcd for all
// nodes.
type overrider interface {
	// override makes the change. For each affected endpoint, it prints the line that describe
	// returns.
	override(describe func(api.OverrideTarget) string) error
	// undrained returns the line to print about an undrained target.
	undrained(api.OverrideTarget) string
	// schedulers returns the schedulers of the targets' services, if they are known.
	schedulers() map[balancer.Name]balancer.Scheduler
	// await returns when the targets have no connections and get no new connections.
	await() error
}

// newOverrider chooses between etcd and this host's daemon. It chooses etcd if the command line or
// VIPCTL_ETCD names it, or if the store is etcd, has the service, and --socket is not set.
func newOverrider(c *cli.Call, q api.OverrideRequest) (overrider, error) {
	if c.OverridesInEtcd() {
		if f, err := newFleetOverride(c, q); f != nil || err != nil {
			return f, err
		}
	}
	d := &daemonOverride{Call: c, request: q}
	if q.Draining == nil || *q.Draining {
		return d, nil
	}
	var err error
	d.before, err = cli.AskDaemon(c, (*api.Client).Endpoints)
	return d, err
}

// daemonOverride changes overrides in this host's daemon.
type daemonOverride struct {
	*cli.Call
	request api.OverrideRequest
	// before lists all endpoints as they were before an undrain.
	before []api.Endpoint
	// targets lists the affected endpoints.
	targets []api.OverrideTarget
}

func (d *daemonOverride) override(overrides func(api.OverrideTarget) string) error {
	client, err := d.Client()
	if err != nil {
		return err
	}
	q := &d.request
	r, err := client.Override(d, *q)
	if err != nil {
		return err
	}
	d.targets = r.Targets
	err = d.Show(r, func() string { return targetLines(r.Targets, overrides) })
	noteName(d.Call, q, r.Targets)
	if q.Draining != nil && !*q.Draining && lookup.HostName(q.Address) != "" {
		left, _ := cli.AskDaemon(d.Call, (*api.Client).Overrides)
		noteFormerDrains(d.Call, q, left.Targets, func(t api.OverrideTarget) bool {
			return slices.ContainsFunc(d.before, func(e api.Endpoint) bool { return e.Service == t.Service && isAt(e.Address, t.Address) })
		})
	}
	if err == nil && (q.Draining != nil && *q.Draining || q.Weight != nil && *q.Weight == 0) {
		d.noteIdle()
	}
	return err
}

func targetLines(targets []api.OverrideTarget, overrides func(api.OverrideTarget) string) string {
	return strings.Join(lists.Mapped(targets, func(t api.OverrideTarget) string {
		return fmt.Sprintf("%s/%s: %s\n", t.Service, t.Address, overrides(t))
	}), "")
}

// noteName prints the current addresses of the DNS name in a request.
func noteName(c *cli.Call, q *api.OverrideRequest, targets []api.OverrideTarget) {
	if name := lookup.HostName(q.Address); name != "" && len(targets) > 0 {
		addresses := lists.Mapped(targets, func(t api.OverrideTarget) string { return t.Address })
		c.Hint("%s now resolves to %s; the change does not affect addresses that the name resolves to later", name, wording.Some(addresses, 8))
	}
}

// noteFormerDrains is called after a DNS name is undrained. It prints the addresses that the
// service still drains although they are no longer endpoints. The name may have had these addresses
// during the drain.
func noteFormerDrains(c *cli.Call, q *api.OverrideRequest, all []api.OverrideTarget, isEndpoint func(api.OverrideTarget) bool) {
	var left []string
	for _, t := range all {
		if t.Service == q.Service && t.Override.Drains() && !isEndpoint(t) {
			left = append(left, t.Address)
		}
	}
	if left != nil {
		slices.Sort(left)
		c.Hint("service %s still drains addresses that are not endpoints now: %s; to end such a drain, run for example \"vipctl undrain %[1]s %[3]s\"",
			q.Service, wording.Some(left, 8), left[0])
	}
}

// noteIdle prints which of the targets' services no longer have an endpoint for new connections. If
// the daemon does not answer, it prints nothing.
func (d *daemonOverride) noteIdle() {
	s, _ := cli.AskDaemon(d.Call, (*api.Client).Status)
	for _, p := range s.Problems {
		if p.Kind == balancer.Idle && d.meets(p.Service) {
			d.Hint("service %s: %s", p.Service, p.PortText())
		}
	}
}

// meets reports whether the change affected one of the service's endpoints.
func (d *daemonOverride) meets(service balancer.Name) bool {
	return slices.ContainsFunc(d.targets, func(t api.OverrideTarget) bool { return t.Service == service })
}

func (d *daemonOverride) schedulers() map[balancer.Name]balancer.Scheduler {
	frontends, _ := cli.AskDaemon(d.Call, (*api.Client).Frontends)
	by := map[balancer.Name]balancer.Scheduler{}
	for _, f := range frontends {
		if d.meets(f.Service) {
			by[f.Service] = f.Scheduler
		}
	}
	return by
}

func (d *daemonOverride) undrained(t api.OverrideTarget) string {
	at := slices.DeleteFunc(slices.Clone(d.before), func(e api.Endpoint) bool { return e.Service != t.Service || !isAt(e.Address, t.Address) })
	overrides := lists.Mapped(at, func(e api.Endpoint) *balancer.Override { return e.Override })
	draining := func(e api.Endpoint) bool { return e.State == balancer.Draining || e.Override.Drains() }
	hasAgent := slices.ContainsFunc(at, func(e api.Endpoint) bool { return e.Agent != nil })
	return undrainedText(t, hasAgent, len(at) == 0 || slices.ContainsFunc(at, draining), overrides)
}

// undrainedText returns the line to print about an undrained target. hasAgent and drained describe
// the target, and overrides are the overrides that it had before.
func undrainedText(t api.OverrideTarget, hasAgent, drained bool, overrides []*balancer.Override) string {
	text := "drain removed"
	if !drained {
		text = "it was not draining"
	}
	if o := t.Override; hasAgent && o != nil && o.Draining != nil && !*o.Draining {
		text += "; drains requested by its agent are ignored until you drain the endpoint again and end that drain"
	}
	if i := slices.IndexFunc(overrides, func(o *balancer.Override) bool { return o != nil && o.Weight != nil }); i >= 0 {
		text += fmt.Sprintf("; the manually set weight %d remains: \"vipctl weight %s %s -\" removes it", *overrides[i].Weight, t.Service, t.Address)
	}
	return text
}
