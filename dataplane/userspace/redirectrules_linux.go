package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
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

// mostLines bounds the lines of one restore. Where the kernel bounds what a socket may send, as in user namespaces, it
// takes about 500.
const mostLines = 300

// commit writes what is pending, and drops conntrack's memory of UDP flows that went elsewhere. Keys that failed on
// their own are a KeyErrors.
func (r *redirect) commit(ctx context.Context) error {
	failed := dataplane.KeyErrors{}
	var all error
	for _, family := range xtables.Families() {
		if y := r.families[family]; y != nil {
			if err := y.commit(ctx, failed); err != nil {
				all = errors.Join(all, fmt.Errorf("redirecting %s: %w", y.name, err))
			}
		}
	}
	if all == nil && len(failed) > 0 {
		return failed
	}
	return all
}

func (y *redirectFamily) commit(ctx context.Context, failed dataplane.KeyErrors) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.pending) == 0 && !y.unsure && y.jumps && len(y.stale) == 0 {
		return nil
	}
	sure := !y.unsure
	err := y.editLocked(ctx, failed)
	if err != nil && sure { // the kernel has something else than we know of
		y.unsure, y.jumps = true, false
		err = y.editLocked(ctx, failed)
	}
	maps.DeleteFunc(y.pending, func(_ balancer.Key, text string) bool { return text != "" }) // these are asked for again
	if err == nil {
		err = y.ensureJumps(ctx)
	}
	if err == nil && !sure && len(failed) == 0 {
		err = y.provedLocked(ctx)
	}
	if err != nil {
		y.unsure = true
		return err
	}
	if err := y.forgetFlows(ctx, y.stale); err != nil { // the rules are there, but these keys are not done
		for k := range y.stale {
			failed[k] = err
		}
		return nil
	}
	clear(y.stale)
	return nil
}

// provedLocked looks whether what was broken is as it was just written.
func (y *redirectFamily) provedLocked(ctx context.Context) error {
	wrong, err := y.compareLocked(ctx)
	if wrong == "" || err != nil {
		return err
	}
	return fmt.Errorf("%s, though it was just written: somebody else changes it at the same time, or the iptables program that vipd found "+
		"does nothing: try it by hand, and choose the other [iptables] backend", wrong)
}

// forgetFlows drops what conntrack knows of UDP flows to the keys: it decides only once per flow where that goes, so that
// a client that goes on sending would never meet a rule that is new, and go on meeting one that is not there any more.
func forgetFlows(ctx context.Context, keys map[balancer.Key]bool) error {
	if len(keys) == 0 {
		return nil
	}
	conn, err := conntrack.Open()
	if err == nil {
		_, err = conn.Cut(ctx, keys, nil)
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("dropping conntrack's UDP flows to redirected addresses: %w", err)
	}
	return nil
}

func (y *redirectFamily) editLocked(ctx context.Context, failed dataplane.KeyErrors) error {
	edits, err := y.edits(ctx)
	if err != nil {
		return err
	}
	return y.writeLocked(ctx, edits, failed)
}

// edit is what makes one key's rules what is wanted.
type edit struct {
	key   balancer.Key
	text  string // the rule that is wanted; "": none
	lines []string
}

// edits is the way from what is in the kernel to what is pending, sorted by key.
func (y *redirectFamily) edits(ctx context.Context) ([]edit, error) {
	there := map[balancer.Key][]string{}
	keys := y.pending
	if y.unsure {
		lines, err := y.read(ctx)
		if err != nil {
			return nil, err
		}
		there = y.owners(lines)
		keys = maps.Clone(y.rules)
		maps.Copy(keys, y.pending)
		for k := range there {
			if _, known := keys[k]; !known {
				keys[k] = ""
			}
		}
	} else {
		for k := range keys {
			if old := y.rules[k]; old != "" {
				there[k] = []string{old}
			}
		}
	}
	var edits []edit
	for _, k := range slices.SortedFunc(maps.Keys(keys), balancer.Key.Compare) {
		edits = append(edits, edit{k, keys[k], difference(there[k], keys[k])})
	}
	return edits, nil
}

// owners sorts rules by the keys that they are, or were, of; those of nobody are of the zero key's.
func (y *redirectFamily) owners(lines []string) map[balancer.Key][]string {
	of := map[string]balancer.Key{}
	for k, text := range y.pending {
		of[text] = k
	}
	for k, text := range y.rules {
		of[text] = k
	}
	there := map[balancer.Key][]string{}
	for _, line := range lines {
		there[of[line]] = append(there[of[line]], line)
	}
	return there
}

// difference is what makes rules the one that is wanted.
func difference(there []string, want string) []string {
	var lines []string
	if want != "" && !slices.Contains(there, want) {
		lines = append(lines, "-A "+chain+" "+want)
	}
	kept := want == ""
	for _, text := range there {
		if text == want && !kept {
			kept = true
			continue
		}
		lines = append(lines, "-D "+chain+" "+text)
	}
	return lines
}

// writeLocked carries out edits, block by block. Blocks that fail are noted, unless all do: then it is not about them.
func (y *redirectFamily) writeLocked(ctx context.Context, edits []edit, failed dataplane.KeyErrors) error {
	var reason error
	each := dataplane.KeyErrors{}
	blocks, good := 0, 0
	for len(edits) > 0 {
		n, lines := 0, []string(nil)
		for n < len(edits) && (n == 0 || len(lines)+len(edits[n].lines) <= mostLines) {
			lines = append(lines, edits[n].lines...)
			n++
		}
		block := edits[:n]
		edits = edits[n:]
		blocks++
		if len(lines) > 0 {
			if err := y.restore(ctx, "*nat\n"+strings.Join(lines, "\n")+"\nCOMMIT\n"); err != nil {
				reason = err
				for _, e := range block {
					each[e.key] = err
				}
				continue
			}
		}
		good++
		y.wroteLocked(block)
	}
	y.unsure = reason != nil
	if blocks > 0 && good == 0 {
		return reason
	}
	maps.Copy(failed, each)
	return nil
}

// wroteLocked notes a block that the kernel has taken.
func (y *redirectFamily) wroteLocked(block []edit) {
	for _, e := range block {
		if len(e.lines) > 0 && e.key.Proto == balancer.UDP {
			y.stale[e.key] = true
		}
		delete(y.pending, e.key)
		if e.text == "" {
			delete(y.rules, e.key)
		} else {
			y.rules[e.key] = e.text
		}
	}
}

// read returns the rules of our chain without the keeper, and makes the chain where it is not there.
func (y *redirectFamily) read(ctx context.Context) ([]string, error) {
	there, err := y.tool.ChainExists(ctx, "nat", chain)
	if err != nil {
		return nil, err
	}
	var lines []string
	if there {
		if lines, err = y.tool.Rules(ctx, "nat", chain); err != nil {
			return nil, err
		}
	}
	y.made = true
	input := "-I " + chain + " 1 " + keeper + "\n"
	switch i := slices.Index(lines, keeper); {
	case i == 0:
		return lines[1:], nil
	case i > 0:
		lines = slices.Delete(lines, i, i+1)
		input = "-D " + chain + " " + keeper + "\n" + input
	}
	if !there {
		input = ":" + chain + " - [0:0]\n" + input
	}
	return lines, y.restore(ctx, "*nat\n"+input+"COMMIT\n")
}

// ensureJumps comes after the first rules, so that the chain is never entered half written.
func (y *redirectFamily) ensureJumps(ctx context.Context) error {
	if y.jumps {
		return nil
	}
	for _, hook := range hooks() {
		if err := y.tool.EnsureJump(ctx, "nat", hook, true, "-j", chain); err != nil {
			return err
		}
	}
	y.jumps = true
	return nil
}

// writeTime bounds how long taking the rules back may take.
const writeTime = 30 * time.Second

// stop has every rule lead to a closed port. It goes on where ctx has ended: the rules would lead clients to ports that
// others may get.
func (r *redirect) stop(ctx context.Context, frontends []*frontend) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
	defer cancel()
	var failed error
	for _, f := range frontends {
		y := r.families[xtables.FamilyOf(f.key.Addr)]
		if y == nil {
			failed = errors.Join(failed, bind{}.stop(ctx, []*frontend{f}))
			continue
		}
		if r.d.yielded { // another dataplane has the new connections
			continue
		}
		if port, err := y.closedFor(f); err == nil && !f.isRemoved() {
			y.pending[f.key] = rule(f.key, port)
		} else if err != nil {
			failed = errors.Join(failed, err)
		}
	}
	if !r.d.yielded {
		failed = errors.Join(failed, r.commit(ctx))
	}
	for _, f := range frontends {
		if r.families[xtables.FamilyOf(f.key.Addr)] != nil {
			f.shut()
		}
	}
	for _, y := range r.families {
		if y.shared != nil {
			_ = y.shared.Close() // its loop ends
		}
	}
	return failed
}

// close removes the rules, and then the closed ports that they led to.
func (r *redirect) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
	defer cancel()
	var failed error
	for _, y := range r.families {
		if y.made {
			err := remove(ctx, y.tool)
			y.made = err != nil // what is there later is another's
			failed = errors.Join(failed, err)
		}
		for _, held := range y.closed {
			held.close()
		}
		clear(y.closed)
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
