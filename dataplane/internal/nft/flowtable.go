package nft

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Flowtable is a table of connections whose packets skip netfilter and routing. The kernel forwards
// such packets as soon as they arrive on one of the devices. It needs CONFIG_NF_FLOW_TABLE.
type Flowtable struct {
	Name string
	// Devices holds the names of devices. A transaction adds them to the devices that the flowtable
	// already has.
	Devices []string
	// Hardware reports whether the devices' hardware forwards the connections.
	Hardware bool
}

// These are the flags of flowtables. All flowtables have flowCounter, so conntrack counts their
// packets.
const (
	flowHardware = 0x1 // NFT_FLOWTABLE_HW_OFFLOAD
	flowCounter  = 0x2 // NFT_FLOWTABLE_COUNTER
)

func (f *Flowtable) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, " %s { hook ingress priority 0;", f.Name)
	if len(f.Devices) > 0 {
		fmt.Fprintf(&b, " devices = { %s };", strings.Join(f.Devices, ", "))
	}
	if f.Hardware {
		b.WriteString(" flags offload;")
	}
	b.WriteString(" counter; }")
	return b.String()
}

// AddFlowtable creates a flowtable if it does not exist, and adds devices to it. An existing
// flowtable must have the same Hardware. The transaction fails with ENOENT if a device does not
// exist.
func (t *Tx) AddFlowtable(x Table, f *Flowtable) {
	t.ops = append(t.ops, op{table: x, verb: "add", what: "flowtable", text: f.text(), write: func(m *message) {
		m.open(msgNewFlowtable, flagCreate, x.Family)
		m.String(flowtableTable, x.Name)
		m.String(flowtableName, f.Name)
		m.flowtableHook(f.Devices)
		flags := uint32(flowCounter)
		if f.Hardware {
			flags |= flowHardware
		}
		m.Wire32(flowtableFlags, flags)
		m.End()
	}})
}

// DeleteFlowtable removes a flowtable that no rule uses. If f has devices, it removes only these
// devices. The flowtable's connections continue through netfilter.
func (t *Tx) DeleteFlowtable(x Table, f *Flowtable) {
	text := " " + f.Name
	if len(f.Devices) > 0 {
		text = f.text()
	}
	t.ops = append(t.ops, op{table: x, verb: "delete", what: "flowtable", text: text, write: func(m *message) {
		m.open(msgDelFlowtable, 0, x.Family)
		m.String(flowtableTable, x.Name)
		m.String(flowtableName, f.Name)
		if len(f.Devices) > 0 {
			m.flowtableHook(f.Devices)
		}
		m.End()
	}})
}

func (m *message) flowtableHook(devices []string) {
	m.nest(flowtableHook, func() {
		m.Wire32(1, uint32(Ingress)) // NFTA_FLOWTABLE_HOOK_NUM
		m.Wire32(2, 0)               // NFTA_FLOWTABLE_HOOK_PRIORITY
		if len(devices) > 0 {
			m.nest(flowtableDevices, func() {
				for _, name := range devices {
					m.String(1, name) // NFTA_DEVICE_NAME
				}
			})
		}
	})
}

// Offload adds the packet's connection to a flowtable. It matches only TCP and UDP packets that
// neither open nor end a connection.
type Offload struct{ To *Flowtable }

func (s Offload) text(TableFamily) string { return "flow add @" + s.To.Name }

func (s Offload) write(m *message, _ TableFamily) {
	m.expr(listElem, "flow_offload", func() { m.String(1, s.To.Name) }) // NFTA_FLOW_TABLE_NAME
}

// MorePackets matches connections with more than this number of packets, counting both directions.
// The sysctl net.netfilter.nf_conntrack_acct must have been set when the connection started.
type MorePackets uint64

func (s MorePackets) text(TableFamily) string { return fmt.Sprintf("ct packets > %d", uint64(s)) }

func (s MorePackets) write(m *message, _ TableFamily) {
	m.expr(listElem, "ct", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, 14) // NFT_CT_PKTS
	})
	m.expr(listElem, "byteorder", func() { // the kernel compares bytes in memory order
		m.Wire32(1, register(first)) // NFTA_BYTEORDER_SREG
		m.Wire32(2, register(first)) // NFTA_BYTEORDER_DREG
		m.Wire32(3, 1)               // NFTA_BYTEORDER_OP: NFT_BYTEORDER_HTON
		m.Wire32(4, 8)               // NFTA_BYTEORDER_LEN
		m.Wire32(5, 8)               // NFTA_BYTEORDER_SIZE
	})
	m.expr(listElem, "cmp", func() {
		m.Wire32(1, register(first))
		m.Wire32(2, 4) // NFT_CMP_GT
		m.value(3, binary.BigEndian.AppendUint64(nil, uint64(s)))
	})
}
