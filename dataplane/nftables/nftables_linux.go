package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/nft"
)

// Dataplane forwards frontends by maps of nf_tables. See the package's documentation.
type Dataplane struct {
	dataplane.Base
	log      *slog.Logger
	families []*family // IPv4 and IPv6
	tracker  *dnat.Tracker
	// told: the engine has been asked to apply everything once.
	told bool
}

var _ dataplane.Dataplane = (*Dataplane)(nil)

// New proves by a trial table in each family what works here, and returns a dataplane over what is in the kernel. It changes
// nothing else. The error says what the kernel lacks.
func New(o Options) (*Dataplane, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d := &Dataplane{log: o.Log}
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
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
	if d.tracker, err = dnat.Open(o.Log); err != nil {
		return nil, errors.Join(err, d.closeFamilies())
	}
	return d, nil
}

func (d *Dataplane) closeFamilies() (failed error) {
	for _, y := range d.families {
		failed = errors.Join(failed, y.conn.Close(), y.counter.Close())
	}
	return failed
}

// family is the family of an address.
func (d *Dataplane) family(k balancer.Key) *family {
	if k.Addr.Is4() {
		return d.families[0]
	}
	return d.families[1]
}

// Capabilities implements dataplane.Dataplane.
func (d *Dataplane) Capabilities() balancer.Capabilities { return Capabilities() }

// Traits implements dataplane.Dataplane.
func (d *Dataplane) Traits() dataplane.Traits { return dataplane.Traits{Needs: Needs()} }

// Digest implements dataplane.Dataplane.
func (d *Dataplane) Digest(f *balancer.Frontend) dataplane.Digest { return digest(f) }

// Connections implements dataplane.Dataplane.
func (d *Dataplane) Connections(ctx context.Context) ([]dataplane.Connection, error) {
	return d.tracker.Connections(ctx)
}

// Suspect implements dataplane.Dataplane, for TCP.
func (d *Dataplane) Suspect(ctx context.Context, tell func(balancer.Target)) error {
	return d.tracker.Suspect(ctx, tell)
}

// Close leaves everything in place with keep, and otherwise removes it: established connections go on as long as anything
// else on the host uses conntrack.
func (d *Dataplane) Close(_ context.Context, keep bool) (failed error) {
	for _, y := range d.families {
		if !keep {
			failed = errors.Join(failed, y.remove())
		}
	}
	return errors.Join(failed, d.tracker.Close(), d.closeFamilies())
}

// Cleanup removes what a process that is gone left of this mode, and returns what it did in words, or, with dry, what it
// would do.
func Cleanup(dry bool) (done []string, err error) {
	c, err := nft.Open()
	if err != nil {
		return nil, nil //nolint:nilerr // without nf_tables there is nothing of ours in it
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		for _, name := range []string{tableName, trialName} {
			x := nft.Table{Family: f, Name: name}
			there, err := c.HasTable(x)
			if err != nil || !there {
				continue // a kernel without nf_tables has none
			}
			done = append(done, "delete the nftables table "+x.String())
			if dry {
				continue
			}
			var tx nft.Tx
			tx.DeleteTable(x)
			if err := c.Commit(&tx); err != nil {
				return done, fmt.Errorf("deleting the table %s: %w", x, err)
			}
		}
	}
	return done, nil
}

// trialName is the table that a trial makes and deletes.
const trialName = "vipd-trial"

// try makes a table with one frontend of each kind, and deletes it.
func (y *family) try() error {
	s := newSchema(y.schema.table.Family)
	s.table.Name = trialName
	var tx, away nft.Tx
	s.skeleton(&tx, y.mark)
	for _, c := range []choice{{byChance, 1, 0}, {inTurn, 1, 0}, {byClient, 1, 0}, {byChance, 1, time.Second}} {
		s.write(&tx, &nft.Chain{Name: c.chain(balancer.Key{Proto: balancer.TCP})}, s.rules(c, y.mark))
	}
	away.DeleteTable(s.table)
	if there, err := y.conn.HasTable(s.table); err != nil {
		return err
	} else if there { // of a trial that was cut short
		if err := y.conn.Commit(&away); err != nil {
			return err
		}
	}
	if err := y.conn.Commit(&tx); err != nil {
		return err
	}
	return y.conn.Commit(&away)
}
