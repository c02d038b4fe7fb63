package etcd

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
)

// StoredPolicy are the settings of an address as etcd holds them.
type StoredPolicy struct {
	Addr     netip.Addr
	Fields   map[string]any
	Revision int64
	// VIP is what the fields come to; nil means that they have a mistake.
	VIP *balancer.VIP
}

// Policies returns the settings of all addresses, by address. Keys that name no address are left out.
func (w *Writer) Policies(ctx context.Context) (all []*StoredPolicy, err error) {
	var revision int64
	err = w.readFolder(ctx, policyFolder, &revision, func(address string, kv *mvccpb.KeyValue) {
		s, err := parseVIP(address)
		if err != nil {
			return
		}
		s.kind = policyKind
		p := &StoredPolicy{Addr: s.vip, Revision: kv.ModRevision}
		says, _ := decodeValue(s, kv.Value, balancer.Origin{Key: string(kv.Key), Revision: kv.ModRevision}, nil)
		p.VIP, _ = says.(*balancer.VIP)
		p.Fields, _ = ParseObject(kv.Value) // one that can't be read has no VIP
		all = append(all, p)
	})
	slices.SortFunc(all, func(a, b *StoredPolicy) int { return a.Addr.Compare(b.Addr) })
	return all, err
}

// Says reports whether writing fields in place of what is stored would change nothing for any reader.
func (p *StoredPolicy) Says(fields map[string]any) bool {
	wanted, _ := balancer.DecodeVIP(p.Addr.String(), fields, nil, balancer.SeverityWarning)
	if p.VIP == nil || wanted == nil {
		return false
	}
	known := slices.Equal(slices.Sorted(maps.Keys(p.Fields)), slices.Sorted(maps.Keys(fields)))
	return known && reflect.DeepEqual(p.VIP.VIPPolicy, wanted.VIPPolicy)
}

// SetPolicy writes the settings of an address, in place of what is there; nil fields remove them. Fields that this version does
// not know are an error, unless they may be there.
func (w *Writer) SetPolicy(ctx context.Context, addr netip.Addr, fields map[string]any, allowUnknown bool) (Result, error) {
	var text []byte
	if fields != nil {
		unknown := balancer.SeverityError
		if allowUnknown {
			unknown = balancer.SeverityWarning
		}
		vip, problems := balancer.DecodeVIP(addr.String(), fields, nil, unknown)
		if vip == nil {
			return Result{}, fmt.Errorf("settings of %s: %w", addr, refusal(problems))
		}
		var err error
		if text, err = encode(fields); err != nil {
			return Result{}, err
		}
	}
	return w.edit(ctx, w.keys.Policy(addr), func([]byte) (edited, error) { return edited{text: text}, nil })
}
