package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/dataplane"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// Dataplane forwards frontends with rules of the nat table. See the package's documentation.
type Dataplane struct {
	*dnat.Tracker
	mark     string
	caps     balancer.Capabilities
	sets     *ipset.Conn
	families map[inet.Family]*familyRules
	// reapplied reports whether Observe has already requested that the engine apply everything.
	reapplied bool
	// missing holds the reasons why families are unavailable.
	missing map[inet.Family]error
}

var (
	_ dataplane.Dataplane          = (*Dataplane)(nil)
	_ dataplane.WatchesUnanswered  = (*Dataplane)(nil)
	_ dataplane.ListsConnections   = (*Dataplane)(nil)
	_ dataplane.EndsConnections    = (*Dataplane)(nil)
	_ dataplane.FollowsConnections = (*Dataplane)(nil)
	_ dataplane.Explains           = (*Dataplane)(nil)
)

// New tests with trial chains and a trial set which features work here, and returns a dataplane
// that adopts the existing rules. It returns an error if neither IPv4 nor IPv6 works. It also
// returns an error if a problem that does not affect other modes blocks a family: an unreadable
// table, or another program that holds the lock until ctx is done.
func New(ctx context.Context, o Options) (*Dataplane, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	d := &Dataplane{mark: o.Mark, caps: Capabilities(), families: map[inet.Family]*familyRules{}, missing: map[inet.Family]error{}}
	sets, err := ipset.Open()
	if err != nil {
		return nil, err
	}
	d.sets = sets
	if d.Tracker, err = dnat.Open(o.Log); err != nil {
		sets.Close()
		return nil, err
	}
	var reasons []error
	for _, name := range inet.Families() {
		tool, exact, err := d.find(ctx, name, o)
		if err == nil {
			d.families[name] = newFamily(name, tool, sets, o.Mark, o.Log)
			d.families[name].exact = exact
			continue
		}
		err = fmt.Errorf("iptables mode can't serve %s here: %w", name, err)
		if errors.Is(err, xtables.ErrIncompatible) || xtables.IsBusy(err) || ctx.Err() != nil {
			return nil, errors.Join(err, d.Close(ctx, true))
		}
		d.missing[name] = err
		reasons = append(reasons, err)
	}
	if len(d.families) == 0 {
		return nil, errors.Join(append(reasons, d.Close(ctx, true))...)
	}
	for _, err := range reasons {
		o.Log.Warn("one address family is not served", "err", err)
	}
	return d, nil
}

// busyPause is the pause between two trials while another program holds the lock on the tables.
const busyPause = 100 * time.Millisecond

// find returns the tool of a family, and reports whether the tool prints rules as they were
// written. It removes unsupported features from the capabilities. While other programs hold the
// lock, it retries until ctx is done, because a missing family stays missing for the lifetime of
// the process.
func (d *Dataplane) find(ctx context.Context, name inet.Family, o Options) (tool *xtables.Tool, exact bool, err error) {
	var busy error
	for {
		if tool, err = xtables.Find(ctx, name, o.Variant, o.Log); err == nil {
			exact, err = try(ctx, tool, d.sets, &d.caps, o.Mark)
		}
		switch {
		case err != nil && ctx.Err() != nil && busy != nil:
			return nil, false, busy // ctx interrupted the last attempt
		case !xtables.IsBusy(err):
			return tool, exact, err
		}
		busy = err
		if !wake.Sleep(ctx, busyPause) {
			return nil, false, err
		}
	}
}

func trialSet(family inet.Family) string { return "vipd-trial" + family.Digit() }

// try tests the features that rules need, and reports whether rules are printed as they are
// written. If only some schedulers or protocols lack a feature, it removes them from caps.
func try(ctx context.Context, tool *xtables.Tool, sets *ipset.Conn, caps *balancer.Capabilities, mark string) (exact bool, err error) {
	is4 := tool.Family() == inet.IPv4
	to := netip.MustParseAddrPort("198.51.100.1:9") // a documentation address (RFC 5737, RFC 3849)
	if !is4 {
		to = netip.MustParseAddrPort("[2001:db8::1]:9")
	}
	set := trialSet(tool.Family())
	if err := createSet(sets, set, tool.Family()); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, sets.DestroySoon(ctx, set)) }()
	key := balancer.Key{Addr: to.Addr(), Port: 9, Proto: balancer.TCP}
	rules := []string{
		"-p tcp " + byChance("", 1, 3) + "-j DNAT --to-destination " + to.String(),
		"-p udp " + inTurn("", 1, 3) + "-j DNAT --to-destination " + to.String(),
		"-m set --match-set " + set + " dst,dst,src -j RETURN",
		"-j SET --add-set " + set + " dst,dst,src --exist --timeout 10",
		"-j SET --del-set " + set + " dst,dst,src",
		cmp.Or(mark, "-j RETURN"),
		keeper(is4),
		pathOf(key).match(newTree(is4).root.at) + "-j RETURN",
		note{key: key, service: "trial", digest: 1}.rule(),
	}
	read, err := tool.Try(ctx, table, rules...)
	if err != nil {
		return false, err
	}
	exact = slices.EqualFunc(rules, read, sameText)
	missing, _, err := refused(ctx, tool, "-p sctp -m sctp --dport 9 -j DNAT --to-destination "+to.String())
	if err != nil {
		return false, err
	}
	if missing {
		caps.Protocols = []balancer.Protocol{balancer.TCP, balancer.UDP}
	}
	missing, same, err := refused(ctx, tool, bySource(is4)("trial", 1, 3)+"-j RETURN")
	if err != nil {
		return false, err
	}
	if missing {
		caps.Nearest[balancer.SourceHash], caps.Nearest[balancer.Maglev] = balancer.Random, balancer.Random
	}
	_, err = tool.Saved(ctx, table, frontPrefix, func(string, []string) error { return nil })
	return exact && (missing || same), err
}

// sameText reports whether a rule is printed as it was written.
func sameText(written, read string) bool { return canonical(written) == canonical(read) }

// refused tries a rule in a trial chain. missing reports whether the kernel or iptables refuses the
// rule, and same whether iptables prints the rule as it was written. It returns an error if the
// trial was not possible, for example because another program holds the lock.
func refused(ctx context.Context, tool *xtables.Tool, rule string) (missing, same bool, err error) {
	read, err := tool.Try(ctx, table, rule)
	if xtables.IsBusy(err) || ctx.Err() != nil {
		return false, false, err
	}
	return err != nil, err == nil && sameText(rule, read[0]), nil
}

// Capabilities returns the features that work here.
func (d *Dataplane) Capabilities() balancer.Capabilities { return d.caps }

// Traits implements dataplane.Dataplane.
func (d *Dataplane) Traits() dataplane.Traits {
	return dataplane.Traits{Needs: Needs(), Detail: d.detail()}
}

// detail describes in one line each family's variant and why it was selected. For a missing family,
// it gives the reason.
func (d *Dataplane) detail() string {
	var parts []string
	variants := map[string]bool{}
	variant := ""
	for _, name := range inet.Families() {
		if err := d.missing[name]; err != nil {
			parts = append(parts, fmt.Sprintf("no %s: %s", name, strings.ReplaceAll(errors.Unwrap(err).Error(), "\n", "; ")))
			continue
		}
		tool := d.families[name].tool
		variant = fmt.Sprintf("%s (%s)", tool.Variant(), tool.Why())
		variants[variant] = true
		parts = append(parts, fmt.Sprintf("%s uses %s", name, variant))
	}
	if len(variants) == 1 && len(d.missing) == 0 {
		return variant
	}
	return strings.Join(parts, "; ")
}

// Digest returns a digest of everything that rules depend on.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return digest(f, d.mark) }

// closeTime limits the duration of Close.
const closeTime = 20 * time.Second

// Close keeps everything in the kernel if keep is set, and otherwise removes it. If nothing else on
// the host uses conntrack, removing the rules also ends established connections.
func (d *Dataplane) Close(ctx context.Context, keep bool) error {
	defer d.sets.Close()
	failed := d.Tracker.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime) // the removal must complete even after ctx is done
	defer cancel()
	for _, name := range inet.Families() {
		if y := d.families[name]; y != nil && keep {
			y.readings.Renew()
			y.counts(ctx)
		} else if y != nil {
			if err := y.removeAll(ctx); err != nil {
				failed = errors.Join(failed, fmt.Errorf("removing %s rules: %w", name, err))
			}
		}
	}
	return failed
}

func (y *familyRules) removeAll(ctx context.Context) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if err := replaceJumps(ctx, y.tool, "", nil, nil); err != nil {
		return err
	}
	clear(y.formerly)
	if err := y.removeFormer(ctx); err != nil {
		return err
	}
	y.countLastLocked(ctx)
	y.forget() // rules that can't be removed no longer count
	if err := remove(ctx, y.tool); err != nil {
		return err
	}
	return removeSets(ctx, y.sets, y.name)
}
