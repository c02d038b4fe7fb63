package definitions

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Definitions holds all services in etcd at one revision.
type Definitions struct {
	// Services is sorted by name. Keys with an invalid name are omitted.
	Services []*Stored
	// Held maps each allocated address to the service that holds it. It is empty if the user may
	// not read the holders.
	Held     map[netip.Addr]balancer.Name
	Revision int64
}

// Definitions reads all services.
func (w *Writer) Definitions(ctx context.Context) (d Definitions, err error) {
	err = w.client.ReadFolder(ctx, schema.ServiceFolder, &d.Revision, func(name string, kv *mvccpb.KeyValue) {
		if balancer.Name(name).Valid() {
			d.Services = append(d.Services, stored(kv, balancer.Name(name)))
		}
	})
	if err != nil {
		return Definitions{}, err
	}
	d.Held = map[netip.Addr]balancer.Name{}
	err = w.client.ReadFolder(ctx, schema.VIPFolder, &d.Revision, func(address string, kv *mvccpb.KeyValue) {
		if s, err := schema.ParseVIP(address); err == nil {
			d.Held[s.VIP] = balancer.Name(kv.Value)
		}
	})
	if err != nil && !client.Forbidden(err) {
		return Definitions{}, err
	}
	return d, nil
}

// Names returns the names of all services, sorted.
func (w *Writer) Names(ctx context.Context) (names []balancer.Name, err error) {
	limit, revision := client.UsualTiming().PageKeys, int64(0)
	all := client.Folder(w.keys.Prefix + schema.ServiceFolder)
	ask := func(ctx context.Context, request *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
		request.KeysOnly = true
		return w.client.Get(ctx, request)
	}
	err = client.ReadScope(ctx, ask, all, &limit, &revision, func(answer *etcdserverpb.RangeResponse) error {
		for _, kv := range answer.Kvs {
			if name := balancer.Name(strings.TrimPrefix(string(kv.Key), all.Key)); name.Valid() {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

// stored decodes a service's value.
func stored(kv *mvccpb.KeyValue, name balancer.Name) *Stored {
	origin := balancer.Origin{Key: string(kv.Key), Revision: kv.ModRevision, Created: kv.CreateRevision}
	s := &Stored{Name: name, Revision: kv.ModRevision}
	value, problems := schema.DecodeValue(schema.Subject{Kind: schema.ServiceKind, Of: name}, kv.Value, origin, nil)
	s.Service, _ = value.(*balancer.Service)
	s.Problems = problems
	s.Fields, _ = schema.ParseObject(kv.Value) // its mistakes are among the problems
	return s
}

// Matches reports whether replacing the stored fields with fields would make no difference to any
// reader. Both must define the same service, whatever the reader's defaults are, and must have the
// same unknown fields.
func (s *Stored) Matches(fields map[string]any) bool {
	wanted, problems := balancer.DecodeService(s.Name, fields, nil, nil, balancer.SeverityWarning)
	if !sameService(s.Service, wanted) || !slices.Equal(fieldsWithDefaults(s.Fields), fieldsWithDefaults(fields)) {
		return false
	}
	if len(problems) == 0 && len(s.Problems) == 0 {
		return true
	}
	return !hasUnknownFields(s.Name, fields) && !hasUnknownFields(s.Name, s.Fields) || reflect.DeepEqual(normal(s.Fields), normal(fields))
}

// fieldsWithDefaults returns the names of the fields that override a reader's defaults, sorted.
func fieldsWithDefaults(fields map[string]any) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(fields)), func(field string) bool {
		return field == "vips" || field == "ports" || field == "endpoints"
	})
}

// hasUnknownFields reports whether there are fields that this version does not know.
func hasUnknownFields(name balancer.Name, fields map[string]any) bool {
	service, _ := balancer.DecodeService(name, fields, nil, nil, balancer.SeverityError)
	return service == nil
}

// normal returns fields in the form that they have after being written and read back.
func normal(fields map[string]any) map[string]any {
	text, err := json.Marshal(fields)
	if err != nil {
		return fields
	}
	out, err := schema.ParseObject(text)
	if err != nil {
		return fields
	}
	return out
}

// StoredPolicy holds the settings of an address in etcd.
type StoredPolicy struct {
	Addr     netip.Addr
	Fields   map[string]any
	Revision int64
	// VIP is the decoded form of the fields. It is nil if they contain a mistake.
	VIP *balancer.VIP
}

// Policies returns the settings of all addresses, sorted by address. Keys with an invalid address
// are omitted.
func (w *Writer) Policies(ctx context.Context) (all []*StoredPolicy, err error) {
	var revision int64
	err = w.client.ReadFolder(ctx, schema.PolicyFolder, &revision, func(address string, kv *mvccpb.KeyValue) {
		s, err := schema.ParseVIP(address)
		if err != nil {
			return
		}
		s.Kind = schema.PolicyKind
		p := &StoredPolicy{Addr: s.VIP, Revision: kv.ModRevision}
		value, _ := schema.DecodeValue(s, kv.Value, balancer.Origin{Key: string(kv.Key), Revision: kv.ModRevision}, nil)
		p.VIP, _ = value.(*balancer.VIP)
		p.Fields, _ = schema.ParseObject(kv.Value) // settings that can't be parsed have no VIP
		all = append(all, p)
	})
	slices.SortFunc(all, func(a, b *StoredPolicy) int { return a.Addr.Compare(b.Addr) })
	return all, err
}

// Matches reports whether replacing the stored fields with fields would make no difference to any
// reader.
func (p *StoredPolicy) Matches(fields map[string]any) bool {
	wanted, _ := balancer.DecodeVIP(p.Addr.String(), fields, nil, balancer.SeverityWarning)
	if p.VIP == nil || wanted == nil {
		return false
	}
	known := slices.Equal(slices.Sorted(maps.Keys(p.Fields)), slices.Sorted(maps.Keys(fields)))
	return known && reflect.DeepEqual(p.VIP.VIPPolicy, wanted.VIPPolicy)
}

// SetPolicy replaces the settings of an address, or removes them if fields is nil. Fields that this
// version does not know are an error unless allowUnknown is set.
func (w *Writer) SetPolicy(ctx context.Context, addr netip.Addr, fields map[string]any, allowUnknown bool) (client.Result, error) {
	var text []byte
	if fields != nil {
		unknown := balancer.SeverityError
		if allowUnknown {
			unknown = balancer.SeverityWarning
		}
		vip, problems := balancer.DecodeVIP(addr.String(), fields, nil, unknown)
		if vip == nil {
			return client.Result{}, fmt.Errorf("settings of %s: %w", addr, refusal(problems))
		}
		var err error
		if text, err = schema.Encode(fields); err != nil {
			return client.Result{}, err
		}
	}
	return w.client.Edit(ctx, w.keys.Policy(addr), func([]byte) (client.Edited, error) { return client.Edited{Text: text}, nil })
}
