package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/nft"
)

// family is what is known of the table of one family in the kernel.
type family struct {
	schema *schema
	mark   uint32
	// table is schema's in the kernel.
	table *nft.Owned

	mu sync.Mutex // guards what follows
	// fronts are the frontends that are in the kernel.
	fronts map[balancer.Key]*front
	// chains are those that choose, and how many frontends use each; those of none go with the next change.
	chains map[string]*chain
	// last is the highest number of a chain.
	last uint32
	// sound: the table has been read since the last failure, and is as fronts and chains say.
	sound bool
	// damage says what was found broken since the last transaction that wrote all that frontends share.
	damage string
	// doubt is why frontends that no change was about may not be what they should be; Observe looks.
	doubt string
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
	// number is what its element of frontends has, 0 where it has none, and chain where that leads.
	number uint32
	chain  string
	// eps and slots are its elements of these maps by number, one of the two for one choice, and ids the backends by id.
	eps   []netip.AddrPort
	slots []uint32
	ids   map[uint32]netip.AddrPort
}

// uses are the chains that the frontend needs.
func (f *front) uses() (all []string) {
	if f.chain != "" {
		all = append(all, f.chain)
	}
	if len(f.ids) > 0 {
		all = append(all, clearing)
	}
	return all
}

// chain is one that chooses, or clears.
type chain struct {
	users int
	// number is its own in choices; 0 means none. That of unserved, which is always there, is kept nowhere.
	number uint32
	// choice says what its rules are; the zero value for one that an earlier process has left.
	choice choice
}

func newFamily(f nft.Family, mark uint32) (*family, error) {
	y := &family{schema: newSchema(f), mark: mark}
	y.readings = counters.NewReadings()
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	y.table = &nft.Owned{Conn: conn, Table: y.schema.table}
	if err = conn.Listen(); err == nil {
		y.counter, err = nft.Open()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	y.forget()
	return y, nil
}

// forget is the state in which nothing is known of the kernel.
func (y *family) forget() {
	y.fronts, y.chains, y.table.Shape = map[balancer.Key]*front{}, map[string]*chain{}, nil
	y.sound, y.doubt = false, ""
}

// commit makes a transaction, and keeps what the elements had counted that it deletes.
func (y *family) commit(ctx context.Context, tx *nft.Tx) error {
	err := y.table.Commit(tx)
	if tx.Len() > 0 {
		dataplane.Wrote(ctx, tx.Bytes)
	}
	var refused *nft.Error
	conflict := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
	if err != nil && (conflict || !errors.As(err, &refused)) { // what is refused for another reason has no effect
		y.doubtLocked(err)
	}
	if tx.Len() > 0 && (err == nil || errors.Is(err, nft.ErrBusy)) {
		y.epoch++
		y.endLocked(tx.Deleted)
	}
	return err
}

// doubtLocked notes that the table may not be as fronts and chains say, also where frontends are concerned that no change was about.
func (y *family) doubtLocked(err error) {
	y.sound, y.doubt = false, fmt.Sprintf("table %s is not as it was left: %v", y.schema.table, err)
}

// remove deletes the table. Nothing is translated any more when its elements are read for the last time: what came in between would
// not be counted.
func (y *family) remove() error {
	y.mu.Lock()
	defer y.mu.Unlock()
	var tx nft.Tx
	for _, b := range y.schema.bases(y.mark) {
		tx.FlushChain(y.schema.table, b.Name)
	}
	_ = y.table.Conn.Commit(&tx) // it fails where the table or a chain is gone, which the next steps meet, too
	y.countLastLocked()
	err := y.table.Remove()
	if err == nil {
		y.forget()
	}
	return err
}
