package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/totals"
)

// family is what is known of the table of one family in the kernel.
type family struct {
	schema *schema
	mark   uint32
	conn   *nft.Conn

	mu sync.Mutex // guards what follows
	// fronts are the frontends that are in the kernel.
	fronts map[balancer.Key]*front
	// chains are those that choose, and how many frontends use each; those of none go with the next change.
	chains map[string]*chain
	// sound: the table has been read since the last failure, and is as fronts and chains say.
	sound bool
	// damage says what was found broken since the last transaction that wrote all that frontends share.
	damage string
	// rules are the handles of the rules of each chain, in their order; nil: not known yet.
	rules map[string][]uint64
	// generation is that of our last commit or of the last look.
	generation uint32
	// next is when the table may be read again after a change by others.
	next time.Time
	// epoch counts commits.
	epoch uint64

	counts
}

// front is one frontend in the kernel.
type front struct {
	// digest is of the Frontend that was applied, 0 where the frontend is damaged; stored is what the kernel has in digests.
	digest, stored dataplane.Digest
	choice         choice
	label          string
	// chain is where its element of svc leads; empty where it has none.
	chain string
	// eps and slots are its elements of these maps by number, one of the two for one choice, and ids the backends by id.
	eps   []netip.AddrPort
	slots []uint32
	ids   map[uint32]netip.AddrPort
	// epoch is when it was last changed.
	epoch uint64
}

// chain is one that chooses.
type chain struct {
	users int
	// choice says what its rules are; the zero value for one that an earlier process has left.
	choice choice
}

func newFamily(f nft.Family, mark uint32) (*family, error) {
	y := &family{schema: newSchema(f), mark: mark}
	y.totals = totals.New(totals.Backend.Whole, func(a, b uint64) uint64 { return a + b })
	var err error
	if y.conn, err = nft.Open(); err != nil {
		return nil, err
	}
	if y.counter, err = nft.Open(); err != nil {
		return nil, errors.Join(err, y.conn.Close())
	}
	y.forget()
	return y, nil
}

// forget is the state in which nothing is known of the kernel.
func (y *family) forget() {
	y.fronts, y.chains, y.rules, y.sound = map[balancer.Key]*front{}, map[string]*chain{}, nil, false
}

// commit carries out a transaction, and notes whether others have committed since the last look.
func (y *family) commit(tx *nft.Tx) error {
	if tx.Len() == 0 {
		return nil
	}
	before, err := y.conn.Generation()
	if err != nil {
		return err
	}
	if err := y.conn.Commit(tx); err != nil {
		y.sound = false // somebody may have changed what the transaction builds on
		return err
	}
	y.epoch++
	after, err := y.conn.Generation()
	if err == nil && before == y.generation && after == before+1 {
		y.generation = after
	}
	return err
}

// remove deletes the table.
func (y *family) remove() error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.countLastLocked()
	there, err := y.conn.HasTable(y.schema.table)
	if err != nil || !there {
		return err
	}
	var tx nft.Tx
	tx.DeleteTable(y.schema.table)
	if err := y.conn.Commit(&tx); err != nil {
		return fmt.Errorf("deleting the table %s: %w", y.schema.table, err)
	}
	y.forget()
	return nil
}
