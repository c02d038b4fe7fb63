package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// Redirects redirects one family's new connections from frontends to ports of this host, for a mode
// that terminates connections itself. The redirects are a map in an nf_tables table. Calls to its
// methods must not overlap.
type Redirects struct {
	table *redirectTable
	made  bool
	// former reports whether iptables may contain an earlier version's redirects. That version
	// handed over its sockets to this process.
	former bool
}

// NewRedirects returns the redirects of a family, after a trial has proved that they work here.
func NewRedirects(family inet.Family) (*Redirects, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, fmt.Errorf("redirecting %s by nf_tables: %w", family, err)
	}
	nowhere := map[inet.Family]string{inet.IPv4: "198.51.100.0", inet.IPv6: "2001:db8::"}[family] // RFC 5737, RFC 3849
	trial, some := newRedirectTable(conn, family), map[balancer.Key]uint16{{Addr: netip.MustParseAddr(nowhere), Port: 9, Proto: balancer.TCP}: 9}
	trial.Table.Name += trialSuffix
	var tx nft.Tx
	trial.write(&tx, nil, some)
	if err = trial.Try(&tx); err == nil {
		err = conn.Listen()
	}
	if err != nil {
		return nil, fmt.Errorf("redirecting %s by nf_tables: %w", family, errors.Join(err, conn.Close()))
	}
	return &Redirects{table: newRedirectTable(conn, family)}, nil
}

// Adopt makes Observe keep an earlier process's redirects until Set replaces them.
func (r *Redirects) Adopt() { r.made, r.former = true, true }

// Set redirects connections from each frontend to its port in the map ports. It removes all other
// redirects.
func (r *Redirects) Set(ctx context.Context, ports map[balancer.Key]uint16) error {
	if !r.made && len(ports) == 0 { // the table may belong to another process, for example after a trial
		return nil
	}
	r.made = true
	if err := r.table.set(ctx, ports); err != nil || !r.former {
		return err
	}
	err := r.removeFormer(ctx)
	r.former = err != nil
	return err
}

// Observe removes an earlier process's redirects before the first Set. After Set, it describes a
// difference between the kernel's redirects and the redirects that were set. It repeats this
// description, even after an error, until Set writes the redirects again.
func (r *Redirects) Observe(ctx context.Context) (damage string, err error) {
	switch {
	case !r.made:
		return "", r.remove(ctx)
	case r.table.have == nil:
		return "redirects are unknown until they are written again", nil
	}
	if damage, err = r.table.compare(); damage != "" || err != nil {
		r.table.have = nil
	}
	return damage, err
}

// Intact describes changes by other programs that a cheap check reveals, or returns "".
func (r *Redirects) Intact() (string, error) {
	if r.table.have == nil {
		return "", nil
	}
	return r.table.Look(r.table.compare)
}

// Close removes the redirects. After Close has succeeded, any new redirects belong to another
// process.
func (r *Redirects) Close(ctx context.Context) error {
	if r.made {
		if err := r.remove(ctx); err != nil {
			return err
		}
	}
	r.made = false
	_ = r.table.Conn.Close() // an error of Close is harmless
	return nil
}

// remove removes all redirects, including an earlier version's redirects in iptables.
func (r *Redirects) remove(ctx context.Context) error {
	r.table.have = nil
	return errors.Join(r.removeFormer(ctx), r.table.Remove())
}

func (r *Redirects) removeFormer(ctx context.Context) error {
	c := cleanup{ctx: ctx}
	c.tables(r.table.family, formerRedirects())
	return errors.Join(c.errs...)
}

// redirectTable is the table of one family.
type redirectTable struct {
	nft.Maintained
	family inet.Family
	ports  *nft.Set
	// same is the map for frontends whose redirect leads to their own port. Translating only the
	// port would change nothing, and connections that are not translated do not pass the guard.
	same *nft.Set
	// have holds the kernel's redirects. It is nil if the kernel's redirects are unknown.
	have map[balancer.Key]uint16
}

// redirectTableName is the name of the table in each family.
const redirectTableName = "vipd-redirect"

func newRedirectTable(conn *nft.Conn, family inet.Family) *redirectTable {
	l := newLayout(family)
	l.table.Name = redirectTableName
	return &redirectTable{
		family: family, Maintained: nft.Maintained{Conn: conn, Table: l.table},
		ports: &nft.Set{Name: "ports", Key: l.place, Data: nft.Dport}, same: &nft.Set{Name: "same", Key: l.place, Data: nft.Dport},
	}
}

// RedirectRules returns the rules of a chain that redirect a protocol's packets to the port that a
// map holds for their destination. Connections to addresses of this host keep their address. The
// kernel's redirect would replace it for the whole connection by the first address of the
// interface, which may not exist, and which may be removed before the connection ends.
func RedirectRules(protocol uint32, to nft.Lookup) []nft.Rule {
	match := nft.Is{Field: nft.L4proto, Value: protocol}
	return []nft.Rule{rule(match, nft.NotLocal{}, nft.Redirect{To: to}), rule(match, nft.DNATPort{To: to})}
}

// mapOf returns the map that contains the redirect of a frontend to a port.
func (t *redirectTable) mapOf(k balancer.Key, port uint16) *nft.Set {
	if k.Port.First() == port {
		return t.same
	}
	return t.ports
}

// write changes the table from have to want. If have is nil, it writes everything.
func (t *redirectTable) write(tx *nft.Tx, have, want map[balancer.Key]uint16) {
	if have == nil {
		t.define(tx)
	}
	gone, come := map[*nft.Set][]nft.Elem{}, map[*nft.Set][]nft.Elem{}
	for k, port := range have {
		if want[k] != port {
			in := t.mapOf(k, port)
			gone[in] = append(gone[in], element(placeOf(k)))
		}
	}
	for k, port := range want {
		if have[k] != port {
			in := t.mapOf(k, port)
			come[in] = append(come[in], nft.Elem{Key: element(placeOf(k)).Key, Data: nft.Bytes{}.Port(port)})
		}
	}
	for _, in := range []*nft.Set{t.ports, t.same} {
		tx.Delete(t.Table, in, gone[in]...)
		tx.Create(t.Table, in, come[in]...)
	}
}

// define replaces the table with one that has the rules but no redirects.
func (t *redirectTable) define(tx *nft.Tx) {
	tx.AddTable(t.Table) // deleting a missing table would fail
	tx.DeleteTable(t.Table)
	tx.AddTable(t.Table)
	tx.AddSet(t.Table, t.ports)
	tx.AddSet(t.Table, t.same)
	for _, c := range []nft.Chain{base("prerouting", nft.NAT, nft.Prerouting, redirectPriority), base("output", nft.NAT, nft.Output, redirectPriority)} {
		tx.AddChain(t.Table, &c)
		for _, protocol := range []uint32{protocolTCP, protocolUDP} {
			for _, r := range RedirectRules(protocol, nft.Lookup{Key: t.ports.Key, In: t.ports}) {
				tx.AddRule(t.Table, c.Name, r)
			}
			tx.AddRule(t.Table, c.Name, rule(nft.Is{Field: nft.L4proto, Value: protocol}, nft.Redirect{To: nft.Lookup{Key: t.same.Key, In: t.same}}))
		}
	}
}

func (t *redirectTable) set(ctx context.Context, want map[balancer.Key]uint16) error {
	if t.have != nil {
		err := t.make(ctx, want)
		if err == nil {
			return nil
		}
		t.have = nil // the transaction may have failed because another program changed the table
	}
	err := nft.ErrBusy
	for tries := 0; tries < nft.Tries && errors.Is(err, nft.ErrBusy); tries++ {
		if err = t.ReadConsistent(func() error { return nil }); err == nil {
			err = t.make(ctx, want)
		}
	}
	return err
}

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

// compare describes a difference between the table and what was last written, or returns "".
func (t *redirectTable) compare() (string, error) {
	if reason, err := t.Changed(); reason != "" || err != nil {
		return reason, err
	}
	ports := make(map[string]string, len(t.have))
	for _, in := range []*nft.Set{t.ports, t.same} {
		found, err := t.Elements(t.Table, in.Name)
		if err != nil {
			return "", err
		}
		for _, e := range found {
			ports[string(e.Key)] = string(e.Data)
		}
	}
	same := len(ports) == len(t.have)
	for k, port := range t.have {
		same = same && ports[string(element(placeOf(k)).Key)] == string(nft.Bytes{}.Port(port)[:2])
	}
	if !same {
		return "elements of the port map were changed", nil
	}
	return "", nil
}
