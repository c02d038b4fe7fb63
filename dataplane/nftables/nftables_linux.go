package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/nftables/direct"
)

// Dataplane forwards frontends with maps of nf_tables. See the package's documentation.
type Dataplane struct {
	*dnat.Tracker
	families []*familyTable // IPv4 and IPv6
	// direct forwards frontends with forward = "dr". It is nil if the kernel can't forward frames.
	direct *direct.Table
	// reapplied reports whether Observe has already requested that the engine apply everything.
	reapplied bool
}

var (
	_ dataplane.Dataplane          = (*Dataplane)(nil)
	_ dataplane.WatchesUnanswered  = (*Dataplane)(nil)
	_ dataplane.ListsConnections   = (*Dataplane)(nil)
	_ dataplane.EndsConnections    = (*Dataplane)(nil)
	_ dataplane.FollowsConnections = (*Dataplane)(nil)
	_ dataplane.Explains           = (*Dataplane)(nil)
)

// New tests the kernel's features with a trial table in each family, and returns a dataplane that
// adopts the existing tables. New changes nothing else. An error names the missing features.
func New(o Options) (*Dataplane, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	d := &Dataplane{}
	for _, f := range []nft.TableFamily{nft.IPv4, nft.IPv6} {
		y, err := newFamily(f, o.Mark)
		if err != nil {
			return nil, errors.Join(err, d.closeFamilies())
		}
		d.families = append(d.families, y)
		if err := y.try(); err != nil {
			return nil, errors.Join(fmt.Errorf("nftables mode can't serve %s here: %w", f, err), d.closeFamilies())
		}
	}
	var err error
	if d.Tracker, err = dnat.Open(o.Log); err != nil {
		return nil, errors.Join(err, d.closeFamilies())
	}
	if d.direct, err = direct.Open(); err != nil {
		o.Log.Info("nftables mode can't use direct routing (dr) on this host", "err", err)
	}
	return d, nil
}

func (d *Dataplane) closeFamilies() (failed error) {
	for _, y := range d.families {
		failed = errors.Join(failed, y.table.Close(), y.counter.Close())
	}
	return failed
}

// family returns the table of a frontend's family.
func (d *Dataplane) family(k balancer.Key) *familyTable {
	if k.Addr.Is4() {
		return d.families[0]
	}
	return d.families[1]
}

// Capabilities implements dataplane.Dataplane.
func (d *Dataplane) Capabilities() balancer.Capabilities {
	all := Capabilities()
	if d.direct == nil {
		all.Forwards, all.Untranslated = []balancer.Forward{balancer.NATForward}, nil
	}
	return all
}

// Traits implements dataplane.Dataplane.
func (d *Dataplane) Traits() dataplane.Traits { return dataplane.Traits{Needs: Needs()} }

// Digest implements dataplane.Dataplane.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return dnat.Digest(f) }

// Close keeps everything in the kernel if keep is set, and otherwise removes it. Established
// connections continue while anything else on the host uses conntrack.
func (d *Dataplane) Close(_ context.Context, keep bool) (failed error) {
	for _, y := range d.families {
		if keep {
			y.readings.Renew() // makes the next call to Counters read the kernel, while this is still possible
			y.counted()
			continue
		}
		failed = errors.Join(failed, y.remove())
	}
	if d.direct != nil {
		failed = errors.Join(failed, d.direct.Close(keep))
	}
	return errors.Join(failed, d.Tracker.Close(), d.closeFamilies())
}

// Cleanup removes an earlier process's tables. It returns a description of each step. A dry run
// changes nothing.
func Cleanup(dry bool) (done []string, err error) {
	return nft.Cleanup(dry, tableName, trialName)
}

// RenderDirect returns the table that forwards frontends with forward = "dr", as input for
// "nft -f -". It depends on this host's devices and routes, and returns "" if there are no such
// frontends.
func RenderDirect(frontends []*balancer.Frontend) (string, error) { return direct.Render(frontends) }

// trialName is the table that a trial creates and deletes.
const trialName = "vipd-trial"

// try creates a table with a frontend of each kind, and deletes it.
func (y *familyTable) try() error {
	s := newSchema(y.schema.table.Family)
	s.table.Name = trialName
	var tx nft.Tx
	s.writeBase(&tx, y.mark)
	for _, c := range []choice{{method: byChance, n: 1}, {method: inTurn, n: 1}, {method: byClient, n: 1}, {method: byChance, n: 1, sticky: time.Second}} {
		s.writeChoice(&tx, c.chain(balancer.Key{Proto: balancer.TCP}), c, y.mark)
	}
	s.writeChoice(&tx, clearing, choice{method: byNone}, y.mark)
	return (&nft.Maintained{Conn: y.table.Conn, Table: s.table}).Try(&tx)
}
