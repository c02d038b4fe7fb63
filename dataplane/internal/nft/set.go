package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Set is a named set or map. Expressions declare the types of its key and data, as with nft's
// "typeof".
type Set struct {
	Name string
	Key  Expr
	// Data is the type of a map's values. Verdict reports whether the values are verdicts. If
	// neither is set, the object is a set.
	Data    Expr
	Verdict bool
	// Interval permits ranges of a concatenated key (Elem.KeyEnd).
	Interval bool
	// Timed permits elements with a timeout (Elem.Timeout, Update).
	Timed bool
	// Counter enables a counter of packets and bytes for each element.
	Counter bool
	// Dynamic permits rules to add elements (Update, Delete).
	Dynamic bool
	// Size is the maximum number of elements. Zero means no limit.
	Size uint32
}

func (s *Set) isMap() bool { return s.Verdict || s.Data != nil }

func (s *Set) word() string {
	if s.isMap() {
		return "map"
	}
	return "set"
}

func (s *Set) dataKind(f TableFamily) kind {
	if s.Verdict {
		return kind{id: typeVerdict}
	}
	return s.Data.kind(f)
}

// text returns the set's declaration without elements.
func (s *Set) text(f TableFamily) string {
	var b strings.Builder
	data := ""
	switch {
	case s.Verdict:
		data = " : verdict"
	case s.Data != nil:
		data = " : " + s.Data.text(f)
	}
	fmt.Fprintf(&b, " %s { typeof %s%s;", s.Name, s.Key.text(f), data)
	if s.Size != 0 {
		fmt.Fprintf(&b, " size %d;", s.Size)
	}
	var flags []string
	if s.Interval {
		flags = append(flags, "interval")
	}
	if s.Timed {
		flags = append(flags, "timeout")
	}
	if s.Dynamic {
		flags = append(flags, "dynamic")
	}
	if len(flags) > 0 {
		fmt.Fprintf(&b, " flags %s;", strings.Join(flags, ","))
	}
	if s.Counter {
		b.WriteString(" counter;")
	}
	b.WriteString(" }")
	return b.String()
}

func (s *Set) flags(f TableFamily) (flags uint32) {
	for _, x := range []struct {
		on   bool
		flag uint32
	}{
		{s.Interval, setInterval}, {s.isMap(), setMap}, {s.Timed, setHasTTL}, {s.Dynamic, setEval},
		{s.Interval && s.Key.kind(f).parts != nil, setConcat},
	} {
		if x.on {
			flags |= x.flag
		}
	}
	return flags
}

// write writes the set's attributes that follow its table.
func (s *Set) write(m *message, f TableFamily, id uint32) {
	key, data := s.Key.kind(f), kind{}
	m.String(setName, s.Name)
	m.Wire32(setFlags, s.flags(f))
	m.Wire32(setKeyType, key.id)
	m.Wire32(setKeyLen, uint32(key.size))
	if s.isMap() {
		data = s.dataKind(f)
		m.Wire32(setDataType, data.id)
		if !s.Verdict {
			m.Wire32(setDataLen, uint32(data.size))
		}
	}
	m.Wire32(setID, id)
	s.writeDesc(m, key)
	m.Bytes(setUserdata, s.userdata(f, key, data)...)
	if s.Counter {
		m.expr(setExpr, "counter", func() {})
	}
}

// writeDesc writes the set's maximum size and, for a concatenation with ranges, the sizes of its
// fields.
func (s *Set) writeDesc(m *message, key kind) {
	fields := s.Interval && key.parts != nil
	if s.Size == 0 && !fields {
		return
	}
	m.nest(setDesc, func() {
		if s.Size != 0 {
			m.Wire32(descSize, s.Size)
		}
		if !fields {
			return
		}
		m.nest(descConcat, func() {
			for _, p := range key.parts {
				m.nest(listElem, func() { m.Wire32(fieldLen, uint32(p.size)) })
			}
		})
	})
}

func (s *Set) userdata(f TableFamily, key, data kind) []byte {
	var u userdata
	u.uint32(udataKeyOrder, uint32(key.order))
	if s.isMap() {
		u.uint32(udataDataOrder, uint32(data.order))
	}
	u.nest(udataKeyTypeof, func() { s.Key.typeof(&u, f) })
	if s.isMap() {
		u.nest(udataDataTypeof, func() {
			if s.Verdict {
				u.expr(exprVerdict, func() {})
			} else {
				s.Data.typeof(&u, f)
			}
		})
		u.uint32(udataDataInterval, 0)
	}
	return u.b
}

// Elem is an element of a set or map.
type Elem struct {
	// Key holds the parts of the element's key, each padded to 32 bits (see Bytes). If KeyEnd is
	// set, Key is the start of a range.
	Key, KeyEnd []byte
	// Data is a map element's value. If the values are verdicts, Goto or Jump is the verdict's
	// chain.
	Data       []byte
	Goto, Jump string
	// Timeout is the element's lifetime. Zero means no limit.
	Timeout time.Duration
	// Comment appears in listings. It must have at most 127 bytes.
	Comment string
}

// FoundElem is an existing element.
type FoundElem struct {
	Elem
	// Expires is the time until the element is removed. Zero means that the element never expires.
	Expires time.Duration
	// Packets is the element's packet counter, if the set has counters.
	Packets uint64
}

// write writes an element of a set whose keys and values have the sizes key and data. The sizes are
// necessary because Bytes pads a single port of two bytes to four bytes.
func (e *Elem) write(m *message, key, data int, withData bool) {
	m.Nest(listElem)
	m.value(elemKey, e.Key[:min(key, len(e.Key))])
	if e.KeyEnd != nil {
		m.value(elemKeyEnd, e.KeyEnd[:min(key, len(e.KeyEnd))])
	}
	if withData {
		switch {
		case e.Goto != "":
			m.verdict(elemData, codeGoto, e.Goto)
		case e.Jump != "":
			m.verdict(elemData, codeJump, e.Jump)
		case e.Data != nil:
			m.value(elemData, e.Data[:min(data, len(e.Data))])
		}
		if e.Timeout > 0 {
			m.Wire64(elemTimeout, uint64(e.Timeout.Milliseconds()))
		}
		if u := comment(e.Comment); u != nil {
			m.Bytes(elemUserdata, u...)
		}
	}
	m.Unnest()
}

func (e *Elem) text(s *Set, f TableFamily, withData bool) string {
	var b strings.Builder
	key := s.Key.kind(f)
	b.WriteString(key.format(e.Key, e.KeyEnd))
	if !withData {
		return b.String()
	}
	if e.Timeout > 0 {
		fmt.Fprintf(&b, " timeout %s", duration(e.Timeout))
	}
	if e.Comment != "" {
		fmt.Fprintf(&b, " comment %q", e.Comment[:min(len(e.Comment), maxComment)])
	}
	switch {
	case e.Goto != "":
		b.WriteString(" : goto " + e.Goto)
	case e.Jump != "":
		b.WriteString(" : jump " + e.Jump)
	case e.Data != nil:
		b.WriteString(" : " + s.Data.kind(f).format(e.Data, nil))
	}
	return b.String()
}

// duration formats d in nft syntax: in seconds if that is a whole number, otherwise in
// milliseconds.
func duration(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%ds", d/time.Second)
	}
	return fmt.Sprintf("%dms", d.Milliseconds())
}

// format formats a value of this kind, or a range from v to end.
func (k kind) format(v, end []byte) string {
	parts := k.parts
	if parts == nil {
		parts = []kind{k}
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		n := p.registers() * 4
		if len(v) < p.size {
			return fmt.Sprintf("0x%x", v)
		}
		texts[i] = p.formatOne(v[:p.size])
		if len(end) >= p.size {
			if last := p.formatOne(end[:p.size]); last != texts[i] {
				texts[i] = between(v[:p.size], end[:p.size], texts[i], last)
			}
			end = end[min(n, len(end)):]
		}
		v = v[min(n, len(v)):]
	}
	return strings.Join(texts, " . ")
}

func between(first, last []byte, firstText, lastText string) string {
	if a, ok := netip.AddrFromSlice(first); ok && len(first) >= 4 {
		for bits := a.BitLen(); bits >= 0; bits-- {
			if p := netip.PrefixFrom(a, bits); p.Masked().Addr() == a && lastOf(p) == netip.Addr.String(mustAddr(last)) {
				return p.String()
			}
		}
	}
	return firstText + "-" + lastText
}

func (k kind) formatOne(v []byte) string {
	if k.size == 2 { // a port or a segment size
		return strconv.Itoa(int(binary.BigEndian.Uint16(v)))
	}
	switch k.id {
	case typeIPv4, typeIPv6:
		return mustAddr(v).String()
	case typeProto:
		return protocol(v[0])
	case typeClass:
		n := binary.NativeEndian.Uint32(v)
		return fmt.Sprintf("%x:%x", n>>16, n&0xffff)
	case typeMark:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(v))
	case typeIfName:
		return strconv.Quote(string(bytes.TrimRight(v, "\x00")))
	}
	return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(v)), 10)
}

// protocol returns nft's name for a transport protocol.
func protocol(n byte) string {
	switch n {
	case 1:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 58:
		return "ipv6-icmp"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(n))
}

// mustAddr decodes an address. v must have 4 or 16 bytes.
func mustAddr(v []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(v)
	return a
}

// Last returns a network's last address, which is the end of its range.
func Last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return mustAddr(b)
}

func lastOf(p netip.Prefix) string { return Last(p).String() }

// Bytes is a key or data under construction. Each part is padded to 32 bits.
type Bytes []byte

// Addr appends an address, whose length depends on its family.
func (b Bytes) Addr(a netip.Addr) Bytes { return append(b, a.AsSlice()...) }

// Proto appends a transport protocol's number.
func (b Bytes) Proto(n byte) Bytes { return append(b, n, 0, 0, 0) }

// Name appends an interface's name, padded with zeros to IFNAMSIZ bytes.
func (b Bytes) Name(s string) Bytes {
	var name [16]byte
	copy(name[:], s)
	return append(b, name[:]...)
}

// Port appends a port.
func (b Bytes) Port(n uint16) Bytes { return append(b, byte(n>>8), byte(n), 0, 0) }

// Number appends a number in the host's byte order: a slot, a mark, or an interface.
func (b Bytes) Number(n uint32) Bytes { return binary.NativeEndian.AppendUint32(b, n) }
