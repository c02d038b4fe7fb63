package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nlsock"
	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// table is the conntrack table in a namespace that no other test uses.
type table struct {
	*Conn
	ns    *lab.NS
	write *nlsock.Socket
}

func newTable(t testing.TB, ns *lab.NS) *table {
	t.Helper()
	tab := &table{ns: ns}
	err := ns.Do(func() (err error) {
		if tab.Conn, err = Open(); err != nil {
			return err
		}
		tab.write, err = nlsock.Open(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tab.Close(), tab.write.Close()); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// scratch returns the empty conntrack table of a new namespace. Only the test writes to this table.
func scratch(t testing.TB) *table {
	t.Helper()
	return newTable(t, lab.New(t).Add("scratch"))
}

// where determines which attribute of a created flow contains the flow's zone: the attribute for
// both directions, for the original direction, or for the reply direction.
type where int

const (
	whole where = iota
	original
	reply
)

// create adds flows to the table. in selects the attribute for each flow's zone.
func (tab *table) create(t testing.TB, in where, flows ...Flow) {
	t.Helper()
	for part := range slices.Chunk(flows, batch) {
		var w writer
		var last uint32
		for i := range part {
			last = tab.write.Next()
			w.create(&part[i], in, last)
		}
		if err := tab.write.Send(w.B); err != nil {
			t.Fatal(err)
		}
		tab.await(t, last)
	}
}

// These status bits are used only in tests. confirmed means that the first packet of the flow was
// not dropped, and srcNAT that the source address is translated.
const (
	confirmed Status = 1 << 3
	srcNAT    Status = 1 << 4
)

// delete deletes a flow if it exists.
func (c *Conn) delete(f *Flow) error {
	_, err := c.deleteAll([]Flow{*f})
	return err
}

// await waits for the answer to message number last. An error in any answer fails the test.
func (tab *table) await(t testing.TB, last uint32) {
	t.Helper()
	for {
		m, err := tab.write.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for m.Next() {
			if err := m.Refusal(); err != nil {
				t.Fatalf("writing to the table: %v", err)
			}
			if m.Seq == last {
				return
			}
		}
	}
}

func (tab *table) flush(t testing.TB) {
	t.Helper()
	var w writer
	last := tab.write.Next()
	w.begin(messageDelete, unix.NLM_F_ACK, last, unix.AF_UNSPEC)
	w.End()
	if err := tab.write.Send(w.B); err != nil {
		t.Fatal(err)
	}
	tab.await(t, last)
}

func (w *writer) create(f *Flow, in where, seq uint32) {
	w.begin(messageNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, seq, family(inet.Of(f.Orig.Src.Addr())))
	w.entry(f, in)
	w.End()
}

// entry writes a flow's attributes in a form that the kernel accepts.
func (w *writer) entry(f *Flow, in where) {
	zones := [3]uint16{}
	zones[in] = f.zone
	w.tuple(ctaTupleOrig, f.Proto.Number(), f.Orig, zones[original])
	w.tuple(ctaTupleReply, f.Proto.Number(), f.Reply, zones[reply])
	if zones[whole] != 0 {
		w.Wire16(ctaZone, zones[whole])
	}
	w.Wire32(ctaStatus, uint32(f.Status|confirmed))
	w.Wire32(7, 1000) // CTA_TIMEOUT, in seconds
	if f.Proto == balancer.TCP {
		w.Nest(ctaProtoInfo)
		w.Nest(ctaProtoInfoTCP)
		w.Bytes(ctaState, stateByte(f, "syn-sent", 1, 3))
		w.Unnest()
		w.Unnest()
	}
	if f.Proto == balancer.SCTP {
		w.Nest(ctaProtoInfo)
		w.Nest(ctaProtoInfoSCTP)
		w.Bytes(ctaState, stateByte(f, "cookie-wait", 2, 4))
		w.Bytes(2, 0, 0, 0, 1) // CTA_PROTOINFO_SCTP_VTAG_ORIGINAL
		w.Bytes(3, 0, 0, 0, 2) // CTA_PROTOINFO_SCTP_VTAG_REPLY
		w.Unnest()
		w.Unnest()
	}
}

// stateByte returns the kernel's number for f.State: the argument number if the state equals
// opening, otherwise the argument established.
func stateByte(f *Flow, opening string, number, established byte) byte {
	if f.State == opening {
		return number
	}
	return established
}

// identity contains the fields that distinguish a flow from all other flows in a table, including
// its translated addresses.
type identity struct {
	proto       balancer.Protocol
	orig, reply Tuple
	zone        uint16
}

func (i identity) String() string {
	return fmt.Sprintf("%s %s>%s %s>%s zone %d", i.proto, i.orig.Src, i.orig.Dst, i.reply.Src, i.reply.Dst, i.zone)
}

func identityOf(f *Flow) identity { return identity{f.Proto, f.Orig, f.Reply, f.zone} }

func sorted(ids []identity) []identity {
	slices.SortFunc(ids, func(a, b identity) int { return cmp.Compare(a.String(), b.String()) })
	return ids
}

func identities(flows []Flow) []identity {
	var ids []identity
	for i := range flows {
		ids = append(ids, identityOf(&flows[i]))
	}
	return sorted(ids)
}

func (tab *table) all(t testing.TB, f Filter) []Flow {
	t.Helper()
	var flows []Flow
	err := tab.Each(context.Background(), f, func(f *Flow) error { flows = append(flows, *f); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return flows
}

// want checks that the flows that match f are exactly the flows in want.
func (tab *table) want(t testing.TB, f Filter, want []Flow) {
	t.Helper()
	if got, want := identities(tab.all(t, f)), identities(want); !slices.Equal(got, want) {
		t.Fatalf("flows that match %+v =\n%v\nwant\n%v", f, got, want)
	}
}

// flow returns a flow from a client to a frontend, which is translated to a backend.
func flow(proto balancer.Protocol, client, frontend, backend string) Flow {
	from, to, via := netip.MustParseAddrPort(client), netip.MustParseAddrPort(frontend), netip.MustParseAddrPort(backend)
	return Flow{Proto: proto, Orig: Tuple{from, to}, Reply: Tuple{via, from}}
}

// randomFlows returns n flows from different clients to a few random frontends and backends.
func randomFlows(random *rand.Rand, n int) []Flow {
	protos := []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP}
	flows := make([]Flow, n)
	for i := range flows {
		client, vip, backend := [4]byte{10, 1}, [4]byte{10, 96, 0, byte(1 + random.IntN(3))}, [4]byte{10, 2, 0, byte(1 + random.IntN(3))}
		binary.BigEndian.PutUint16(client[2:], uint16(i/1000+1))
		addrs := []netip.Addr{netip.AddrFrom4(client), netip.AddrFrom4(vip), netip.AddrFrom4(backend)}
		if random.IntN(2) == 0 {
			for j := range addrs {
				b := addrs[j].As4()
				addrs[j] = netip.AddrFrom16([16]byte{0: 0xfd, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
			}
		}
		from := netip.AddrPortFrom(addrs[0], uint16(10000+i%1000))
		flows[i] = Flow{
			Proto: protos[random.IntN(len(protos))],
			Orig:  Tuple{from, netip.AddrPortFrom(addrs[1], uint16(80+random.IntN(3)))},
			Reply: Tuple{netip.AddrPortFrom(addrs[2], 8080), from},
		}
	}
	return flows
}
