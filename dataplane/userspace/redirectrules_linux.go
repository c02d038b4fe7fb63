package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// chain is ours in the nat table of both families. PREROUTING leads others' traffic there, OUTPUT the node's own.
const chain = "VIPD-US"

// keeper is the chain's first rule. It matches nothing, but it uses conntrack, whose hooks the kernel removes with the
// last rule that does: established connections would lose their way when the last redirect goes.
const keeper = "-m conntrack --ctstate INVALID -j RETURN"

// hooks are the kernel's chains that jump to ours.
func hooks() []string { return []string{"PREROUTING", "OUTPUT"} }

// rule is what iptables-restore takes after the chain.
func rule(k balancer.Key, port uint16) string {
	return fmt.Sprintf("-d %s -p %s -m %s --dport %d -j REDIRECT --to-ports %d", netip.PrefixFrom(k.Addr, k.Addr.BitLen()), k.Proto, k.Proto, k.Port, port)
}

// commit writes what is pending, one restore a family, and drops conntrack's memory of UDP flows that went elsewhere.
func (r *redirect) commit(ctx context.Context) error {
	var failed error
	for _, family := range xtables.Families() {
		if y := r.families[family]; y != nil {
			failed = errors.Join(failed, y.commit(ctx))
		}
	}
	return failed
}

func (y *redirectFamily) commit(ctx context.Context) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	pending := y.pending
	y.pending = map[balancer.Key]string{}
	next := maps.Clone(y.rules)
	var lines []string
	flows := map[balancer.Key]bool{}
	for _, k := range slices.SortedFunc(maps.Keys(pending), balancer.Key.Compare) {
		old, text := y.rules[k], pending[k]
		if old == text {
			continue
		}
		if text == "" {
			delete(next, k)
		} else {
			next[k] = text
			lines = append(lines, "-A "+chain+" "+text)
		}
		if old != "" {
			lines = append(lines, "-D "+chain+" "+old)
		}
		if k.Proto == balancer.UDP {
			flows[k] = true
		}
	}
	if len(lines) == 0 && (!y.whole || len(next) == 0 && !y.jumps) {
		return nil
	}
	if err := y.writeLocked(ctx, lines, next); err != nil {
		y.whole = true
		return fmt.Errorf("redirecting %s: %w", y.name, err)
	}
	y.rules = next
	return forgetFlows(y.name, flows)
}

// writeLocked makes the chain what next says, by lines where the rest is there as we left it.
func (y *redirectFamily) writeLocked(ctx context.Context, lines []string, next map[balancer.Key]string) error {
	if !y.whole && y.tool.Restore(ctx, "*nat\n"+strings.Join(lines, "\n")+"\nCOMMIT\n") == nil {
		return nil
	}
	var b strings.Builder
	b.WriteString("*nat\n:" + chain + " - [0:0]\n-A " + chain + " " + keeper + "\n")
	for _, k := range slices.SortedFunc(maps.Keys(next), balancer.Key.Compare) {
		b.WriteString("-A " + chain + " " + next[k] + "\n")
	}
	b.WriteString("COMMIT\n")
	if err := y.tool.Restore(ctx, b.String()); err != nil {
		return err
	}
	for _, hook := range hooks() {
		if err := y.tool.EnsureJump(ctx, "nat", hook, true, "-j", chain); err != nil {
			return err
		}
	}
	y.jumps, y.whole = true, false
	return nil
}

// inspect removes what an earlier process has left, the first time. Later it looks for the jumps, and has the rules
// written again: that costs no more than reading them, and leaves them as they are where they are right.
func (r *redirect) inspect(ctx context.Context) ([]string, error) {
	var damage []string
	for _, family := range xtables.Families() {
		y := r.families[family]
		if y == nil {
			continue
		}
		found, err := y.inspect(ctx)
		if err != nil {
			return nil, err
		}
		damage = append(damage, found...)
	}
	return damage, nil
}

func (y *redirectFamily) inspect(ctx context.Context) ([]string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.jumps {
		y.whole = true
		return nil, remove(ctx, y.tool)
	}
	for _, hook := range hooks() {
		there, err := y.tool.HasJump(ctx, "nat", hook, "-j", chain)
		if err != nil {
			return nil, err
		}
		if !there {
			y.whole = true
			return []string{y.missing(hook)}, nil
		}
	}
	y.whole = true
	return nil, y.writeLocked(ctx, nil, y.rules)
}

func (y *redirectFamily) missing(hook string) string {
	return fmt.Sprintf("the jump from %s to %s is missing in %s's nat table", hook, chain, y.name)
}

// intact looks for a jump and for one of the rules, another one each time: at most two calls of iptables a family.
func (r *redirect) intact(ctx context.Context) (string, error) {
	for _, family := range xtables.Families() {
		if y := r.families[family]; y != nil {
			if reason, err := y.intact(ctx); reason != "" || err != nil {
				return reason, err
			}
		}
	}
	return "", nil
}

func (y *redirectFamily) intact(ctx context.Context) (string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.jumps {
		return "", nil
	}
	y.looks++
	hook := hooks()[y.looks%2]
	if there, err := y.tool.HasJump(ctx, "nat", hook, "-j", chain); err != nil || !there {
		return y.missing(hook), err
	}
	if y.looks%(1+len(y.rules)/50) != 0 {
		return "", nil // iptables reads the whole chain to find one rule: the longer, the more rarely
	}
	what, text := "keeping conntrack", keeper
	for k, t := range y.rules { // some one of them
		what, text = k.String(), t
		break
	}
	there, err := y.tool.HasJump(ctx, "nat", chain, strings.Fields(text)...)
	if err != nil || there {
		return "", err
	}
	return fmt.Sprintf("the rule of %s is missing in %s", what, chain), nil
}

// stop removes the redirects, and leaves what established connections need. It goes on where ctx has ended: the rules
// would send every client to a closed port.
func (r *redirect) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var failed error
	for _, y := range r.families {
		for k := range y.rules {
			y.pending[k] = ""
		}
		failed = errors.Join(failed, y.commit(ctx))
		for _, ln := range []*net.TCPListener{y.shared, y.silent} {
			if ln != nil {
				_ = ln.Close() // its loop ends
			}
		}
	}
	return failed
}

// close removes what is left.
func (r *redirect) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var failed error
	for _, y := range r.families {
		if y.jumps {
			failed = errors.Join(failed, remove(ctx, y.tool))
		}
	}
	return failed
}

// remove deletes our chain and the jumps to it, however often they are there.
func remove(ctx context.Context, tool *xtables.Tool) error {
	there, err := tool.ChainExists(ctx, "nat", chain)
	if err != nil || !there {
		return err
	}
	for _, hook := range hooks() {
		if err := tool.RemoveJump(ctx, "nat", hook, "-j", chain); err != nil {
			return err
		}
	}
	return tool.DeleteChains(ctx, "nat", chain)
}
