package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
)

// Redirects leads new connections to frontends of one family to ports of this host, for a mode that ends connections itself.
// It has the guard's two forms: the map of a table in nf_tables, or a chain in iptables with one rule a frontend. Its methods
// are for one goroutine at a time.
type Redirects struct {
	rules *legacy
	// table is the form in nf_tables, and tool writes the other one; one of them is nil.
	table *redirectTable
	tool  *xtables.Tool
	conn  *nft.Conn
	// made: what is in the kernel is this process's.
	made bool
}

// NewRedirects proves by a trial that redirects of a family work here. An error says what each form lacks.
func NewRedirects(ctx context.Context, family inet.Family, o Options) (*Redirects, error) {
	r := &Redirects{rules: redirectRules(family, o)}
	var reason error
	nowhere := map[inet.Family]string{inet.IPv4: "198.51.100.0", inet.IPv6: "2001:db8::"}[family] // RFC 5737, RFC 3849
	some := map[balancer.Key]uint16{{Addr: netip.MustParseAddr(nowhere), Port: 9, Proto: balancer.TCP}: 9}
	if r.conn, reason = nft.Open(); reason == nil && o.Variant != xtables.Legacy {
		var tx nft.Tx
		trial := newRedirectTable(r.conn, r.rules.family)
		trial.Table.Name += trialSuffix
		trial.write(&tx, nil, some)
		if reason = trial.Try(&tx); reason == nil {
			reason = r.conn.Listen()
		}
		if reason == nil {
			r.table = newRedirectTable(r.conn, r.rules.family)
			return r, nil
		}
	}
	tool, err := xtables.Find(ctx, family, o.Variant, o.Log)
	if err == nil {
		_, err = tool.Try(ctx, "nat", redirectChain(some)...)
	}
	if err != nil {
		r.closeConn()
		return nil, errors.Join(reason, fmt.Errorf("redirecting %s by iptables: %w", family, err))
	}
	r.tool, r.rules.found = tool, tool
	return r, nil
}

// Adopt has Observe leave what an earlier process has made until Set replaces it.
func (r *Redirects) Adopt() { r.made = true }

// Set leads connections to the frontends to these ports, and to no others.
func (r *Redirects) Set(ctx context.Context, ports map[balancer.Key]uint16) error {
	if !r.made && len(ports) == 0 { // as a trial ends: what is there is another process's
		return nil
	}
	r.made = true
	if r.table != nil {
		return r.table.set(ctx, ports)
	}
	g, p := r.rules, r.rules.parts[0]
	g.plan.redirects, g.stale = redirectChain(ports), true
	err := errors.Join(g.bringAll(ctx, r.tool), p.failed)
	if errors.Is(err, errNoJump) { // another program had removed it before
		g.forget()
		err = errors.Join(g.bringAll(ctx, r.tool), p.failed)
	}
	if err != nil {
		g.forget()
		return err
	}
	g.ready, g.looked, g.stale = true, true, false
	return nil
}

// Observe removes what an earlier process has left, before the first Set, and later says in what the redirects are not as they
// were set. It goes on to say so, also after an error, until Set writes them again.
func (r *Redirects) Observe(ctx context.Context) (damage string, err error) {
	switch {
	case !r.made:
		return "", r.remove(ctx)
	case r.table != nil && r.table.have == nil, r.table == nil && !r.rules.ready:
		return "unknown until they are written again", nil
	case r.table != nil:
		if damage, err = r.table.compare(); damage != "" || err != nil {
			r.table.have = nil
		}
	default:
		r.rules.watch.(*watch).table("nat").look = xtables.Contents() // it compares at once
		if damage, err = r.rules.rulesIntact(ctx); damage != "" || err != nil {
			r.rules.forget()
		}
	}
	return damage, err
}

// Intact says what others have changed, where a cheap look shows it.
func (r *Redirects) Intact(ctx context.Context) (string, error) {
	switch {
	case r.table != nil && r.table.have != nil:
		return r.table.Look(r.table.compare)
	case r.table == nil && r.rules.ready:
		return r.rules.rulesIntact(ctx)
	}
	return "", nil
}

// Close removes what Set has made. Once it has succeeded, what is there is another's.
func (r *Redirects) Close(ctx context.Context) error {
	if r.made {
		if err := r.remove(ctx); err != nil {
			return err
		}
	}
	r.made = false
	r.closeConn()
	return nil
}

// remove removes redirects in every form, also an earlier process's.
func (r *Redirects) remove(ctx context.Context) error {
	var failed error
	for _, tool := range xtables.Existing(ctx, r.rules.family) {
		failed = errors.Join(failed, r.rules.removeRules(ctx, tool))
	}
	if r.conn != nil {
		table := newRedirectTable(r.conn, r.rules.family)
		if _, err := r.conn.Generation(); err == nil { // a kernel without nf_tables has none
			failed = errors.Join(failed, table.Remove())
		}
	}
	if r.table != nil {
		r.table.have = nil
	}
	return failed
}

func (r *Redirects) closeConn() {
	if r.conn != nil {
		_ = r.conn.Close() // nothing depends on it any more
	}
}

// redirectTable is the form in nf_tables.
type redirectTable struct {
	nft.Owned
	ports *nft.Set
	// have is what the kernel has; nil means that this is not known.
	have map[balancer.Key]uint16
}

// redirectTableName is the name of the table of each family.
const redirectTableName = "vipd-redirect"

func newRedirectTable(conn *nft.Conn, family inet.Family) *redirectTable {
	l := newLayout(family)
	l.table.Name = redirectTableName
	return &redirectTable{Owned: nft.Owned{Conn: conn, Table: l.table}, ports: &nft.Set{Name: "ports", Key: l.place, Data: nft.Dport}}
}

// write makes what is there into what is wanted; nil for the former means all is written.
func (t *redirectTable) write(tx *nft.Tx, have, want map[balancer.Key]uint16) {
	if have == nil {
		tx.AddTable(t.Table) // or else there may be none to delete
		tx.DeleteTable(t.Table)
		tx.AddTable(t.Table)
		tx.AddSet(t.Table, t.ports)
		for _, c := range []nft.Chain{base("prerouting", nft.NAT, nft.Prerouting, redirectPriority), base("output", nft.NAT, nft.Output, redirectPriority)} {
			tx.AddChain(t.Table, &c)
			for _, protocol := range []uint32{protocolTCP, protocolUDP} {
				tx.AddRule(t.Table, c.Name, rule(nft.Is{Field: nft.L4proto, Value: protocol}, nft.Redirect{To: nft.Lookup{Key: t.ports.Key, In: t.ports}}))
			}
		}
	}
	var gone, come []nft.Elem
	for k, port := range have {
		if want[k] != port {
			gone = append(gone, element(placeOf(k)))
		}
	}
	for k, port := range want {
		if have[k] != port {
			come = append(come, nft.Elem{Key: element(placeOf(k)).Key, Data: nft.Bytes{}.Port(port)})
		}
	}
	tx.Delete(t.Table, t.ports, gone...)
	tx.Create(t.Table, t.ports, come...)
}

func (t *redirectTable) set(ctx context.Context, want map[balancer.Key]uint16) error {
	if t.have != nil {
		err := t.make(ctx, want)
		if err == nil {
			return nil
		}
		t.have = nil // another program may have changed what the transaction builds on
	}
	err := nft.ErrBusy
	for tries := 0; tries < nft.Tries && errors.Is(err, nft.ErrBusy); tries++ {
		if err = t.Steady(func() error { return nil }); err == nil {
			err = t.make(ctx, want)
		}
	}
	return err
}

// make makes the table what is wanted.
func (t *redirectTable) make(ctx context.Context, want map[balancer.Key]uint16) error {
	var tx nft.Tx
	t.write(&tx, t.have, want)
	err := t.Commit(&tx)
	dataplane.Wrote(ctx, tx.Bytes)
	if err == nil {
		t.have = maps.Clone(want)
	}
	return err
}

// compare says in what the table is not as it was written.
func (t *redirectTable) compare() (string, error) {
	if reason, err := t.Changed(); reason != "" || err != nil {
		return reason, err
	}
	found, err := t.Elements(t.Table, t.ports.Name)
	if err != nil {
		return "", err
	}
	ports := make(map[string]string, len(found))
	for _, e := range found {
		ports[string(e.Key)] = string(e.Data)
	}
	same := len(ports) == len(t.have)
	for k, port := range t.have {
		same = same && ports[string(element(placeOf(k)).Key)] == string(nft.Bytes{}.Port(port)[:2])
	}
	if !same {
		return "elements of the map of ports were changed", nil
	}
	return "", nil
}

// redirectRules is the form in iptables, of which nothing is in the kernel.
func redirectRules(family inet.Family, o Options) *legacy {
	w := newWanted(family, o)
	l := &legacy{wanted: w, watch: newWatch(), plan: plan{family: family}}
	l.parts = []*part{{def: partDef{
		name: "redirects", table: "nat",
		chains: func(p *plan) []xtables.Chain { return []xtables.Chain{xtables.NewChain("VIPD-US", p.redirects...)} },
		jumps:  always(jump{"PREROUTING", "-j VIPD-US"}, jump{"OUTPUT", "-j VIPD-US"}),
	}}}
	return l
}

// redirectChain are the rules of redirects, as iptables prints them. The first matches nothing, but it uses conntrack, whose
// hooks the kernel removes with the last rule that does: established connections would be lost with the last redirect.
func redirectChain(ports map[balancer.Key]uint16) []string {
	rules := []string{"-m conntrack --ctstate INVALID -j RETURN"}
	for _, k := range slices.SortedFunc(maps.Keys(ports), balancer.Key.Compare) {
		rules = append(rules, fmt.Sprintf("-d %s -p %s -m %s --dport %d -j REDIRECT --to-ports %d",
			netip.PrefixFrom(k.Addr, k.Addr.BitLen()), k.Proto, k.Proto, k.Port, ports[k]))
	}
	return rules
}

// CleanupRedirects removes the redirects that a process which is gone has left, and returns what it did in words, or, with dry,
// what it would do.
func CleanupRedirects(ctx context.Context, dry bool) ([]string, error) {
	c := cleaner{ctx: ctx, dry: dry}
	tables, err := nft.Cleanup(dry, redirectTableName, redirectTableName+trialSuffix)
	c.done, c.errs = tables, append(c.errs, err)
	for _, f := range inet.Families() {
		g := redirectRules(f, Options{Log: slog.New(slog.DiscardHandler)})
		for _, tool := range xtables.Existing(ctx, f) {
			c.rules(g, tool, fmt.Sprintf("%s, %s", f, tool.Variant()))
		}
	}
	return c.done, errors.Join(c.errs...)
}
