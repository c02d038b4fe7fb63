package dataplane

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"reflect"

	"vipd/balancer"
)

// DigestOf hashes every field of f, on behalf of dataplanes that apply all fields. The result is
// the same in every process.
func DigestOf(f *balancer.Frontend) Digest {
	w := digester{buf: make([]byte, 0, 512)}
	w.addrPort(f.AddrPort())
	w.text(string(f.Proto))
	w.flag(f.NodePort)
	w.text(string(f.Service))
	w.text(f.Port)
	w.text(string(f.Scheduler))
	w.number(int64(f.AffinityTimeout))
	w.number(int64(len(f.Sources)))
	for _, p := range f.Sources {
		w.text(p.String())
	}
	w.text(string(f.SNAT))
	w.text(string(f.Forward))
	w.text(string(f.NoEndpoints))
	w.number(int64(f.DrainTimeout))
	w.number(int64(f.ConnectTimeout))
	w.number(int64(f.IdleTimeout))
	w.text(string(f.ProxyProtocol))
	if f.SlowStart > 0 {
		w.number(int64(f.SlowStart))
	}
	if f.Movable {
		w.flag(true)
	}
	if f.Withdrawn {
		w.text("withdrawn")
	}
	if f.AffinityScope != "" || f.AffinityPrefix > 0 || len(f.Foreign) > 0 {
		w.text(fmt.Sprint("affinity ", f.AffinityScope, f.AffinityPrefix, f.Foreign))
	}
	if len(f.Clients) > 0 {
		w.text(fmt.Sprint("clients ", f.Clients))
	}
	if !f.Limits.IsZero() {
		w.text(fmt.Sprint("limits ", f.Limits))
	}
	if f.Key.Port.IsRange() || len(f.Open) > 0 {
		w.text(fmt.Sprint("range ", f.Key.Port, f.Open))
	}
	w.newer(reflect.ValueOf(f.Policy))
	for _, b := range f.Backends {
		w.addrPort(b.Addr)
		w.text(string(b.State))
		w.number(int64(b.Weight))
		if !b.Until.IsZero() {
			w.number(b.Until.Unix())
		}
		w.number(int64(b.MaxConnections))
	}
	return w.sum()
}

// digester encodes fields. Different sequences of fields have different encodings.
type digester struct{ buf []byte }

func (w *digester) number(n int64) { w.buf = binary.AppendVarint(w.buf, n) }

// newer appends the fields of a policy that follow SlowStart, if they are set. An unset field does
// not change the digest, so digests that an earlier version stored in the kernel remain valid.
func (w *digester) newer(policy reflect.Value) {
	slowStart, _ := policy.Type().FieldByName("SlowStart")
	for i := slowStart.Index[0] + 1; i < policy.NumField(); i++ {
		if v := policy.Field(i); !v.IsZero() {
			w.text(fmt.Sprint(i, v))
		}
	}
}

func (w *digester) flag(b bool) {
	if b {
		w.number(1)
	} else {
		w.number(0)
	}
}

func (w *digester) text(s string) {
	w.number(int64(len(s)))
	w.buf = append(w.buf, s...)
}

func (w *digester) addrPort(ap netip.AddrPort) {
	w.text(string(ap.Addr().AsSlice()))
	w.text(ap.Addr().Zone())
	w.number(int64(ap.Port()))
}

func (w *digester) sum() Digest {
	h := fnv.New64a()
	_, _ = h.Write(w.buf) // Write never fails
	if s := h.Sum64(); s != 0 {
		return Digest(s)
	}
	return 1
}
