package nftables

import (
	"cmp"
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

// familyTable is the known state of a family's table in the kernel.
type familyTable struct {
	schema *schema
	mark   uint32
	// table is the schema's table in the kernel.
	table *nft.Maintained

	mu sync.Mutex // guards the fields below
	// fronts holds the frontends in the kernel.
	fronts map[balancer.Key]*front
	// chains holds the chains that choose a backend, each with its number of users (frontends).
	// unused lists the chains that no frontend used when the table was read. The next change
	// deletes them.
	chains map[string]*chain
	unused []string
	// last is the highest chain number.
	last uint32
	// sound reports whether the table has been read since the last failure and matches fronts and
	// chains.
	sound bool
	// damage describes damage that was found since the last transaction that wrote the shared
	// chains.
	damage string
	// doubt is the reason why unchanged frontends may differ from the kernel. Observe clears it.
	doubt string
	// epoch counts commits.
	epoch uint64

	counterState
}

// front is a frontend in the kernel.
type front struct {
	// digest is the digest of the applied frontend, or 0 if the frontend is damaged. stored is the
	// value of the frontend's element in digests.
	digest, stored dataplane.Digest
	choice         choice
	label          string
	// number is the frontend's value in the map frontends, or 0 if it has none. chain is the chain
	// with that number.
	number uint32
	chain  string
	// eps and slots hold the frontend's values in the maps with these names, by slot number. A
	// choice uses only one of the two maps. ids maps ids to backends.
	eps   []netip.AddrPort
	slots []uint32
	ids   map[uint32]netip.AddrPort
	// open holds the open parts of the frontend's range. Each part has an element with the label in
	// the map ranges. For a range, number is 0, and chain is the range's chain.
	open []balancer.PortRange
	// targets holds the frontend's elements in range-targets. firstTarget is the first port of the
	// backends of a range, which does not change if other programs change the map.
	targets     map[uint16]uint16
	firstTarget uint16
}

// firstTargetOf returns the first port of the backends of a frontend with these elements in
// range-targets.
func firstTargetOf(k balancer.Key, targets map[uint16]uint16) uint16 {
	return cmp.Or(targets[k.Port.First()], k.Port.First())
}

// uses returns the names of the chains that the frontend needs.
func (f *front) uses() (all []string) {
	if own := ownChainOf(f.chain); own != "" { // the rules of f.chain refer to it, so it is created first
		all = append(all, own)
	}
	if f.chain != "" {
		all = append(all, f.chain)
	}
	if len(f.ids) > 0 {
		all = append(all, clearing)
	}
	return all
}

// chain is a chain that chooses a backend, or the chain that clears ids (clearing).
type chain struct {
	users int
	// number is the chain's number in the map choices; 0 means none. The number of the chain
	// "unserved", which always exists, is not stored.
	number uint32
	// choice describes the chain's rules. It is the zero value if an earlier process left the
	// chain.
	choice choice
}

func newFamily(f nft.TableFamily, mark uint32) (*familyTable, error) {
	y := &familyTable{schema: newSchema(f), mark: mark}
	y.readings = counters.NewReadings()
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	y.table = &nft.Maintained{Conn: conn, Table: y.schema.table}
	if err = conn.Listen(); err == nil {
		y.counter, err = nft.Open()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	y.forget()
	return y, nil
}

// forget resets y, so the table must be read before the next change.
func (y *familyTable) forget() {
	y.fronts = map[balancer.Key]*front{}
	y.chains = map[string]*chain{}
	y.table.Shape = nil
	y.sound, y.doubt = false, ""
}

// commit commits a transaction, and saves the counts of the elements that it deletes.
func (y *familyTable) commit(ctx context.Context, tx *nft.Tx) error {
	err := y.table.Commit(tx)
	if tx.Len() > 0 {
		dataplane.Wrote(ctx, tx.Bytes)
	}
	var refused *nft.Error
	conflict := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
	if err != nil && (conflict || !errors.As(err, &refused)) { // after any other refusal, the table is unchanged
		y.markUnknownLocked(err)
	}
	if tx.Len() > 0 && (err == nil || errors.Is(err, nft.ErrBusy)) {
		y.epoch++
		y.endLocked(tx.Deleted)
	}
	return err
}

// markUnknownLocked records that the table may differ from fronts and chains, even for unchanged
// frontends.
func (y *familyTable) markUnknownLocked(err error) {
	y.sound, y.doubt = false, fmt.Sprintf("the state of table %s is unknown after an error: %v", y.schema.table, err)
}

// remove deletes the table. It stops translation before it reads the counters for the last time, so
// every translated connection is counted.
func (y *familyTable) remove() error {
	y.mu.Lock()
	defer y.mu.Unlock()
	var tx nft.Tx
	for _, b := range y.schema.baseChains(y.mark) {
		tx.FlushChain(y.schema.table, b.Name)
	}
	_ = y.table.Conn.Commit(&tx) // fails if the table or a chain is missing, which the next steps also detect
	y.countLastLocked()
	err := y.table.Remove()
	if err == nil {
		y.forget()
	}
	return err
}
