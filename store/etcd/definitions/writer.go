package definitions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Writer reads and writes services and their parts. Each service is written in a single
// transaction. Its methods are safe for concurrent use.
type Writer struct {
	client *client.Client
	keys   schema.Keys

	addresses allocator
}

// NewWriter returns a writer.
func NewWriter(c *client.Client) *Writer { return &Writer{client: c, keys: c.Keys} }

// Change is a change to a service.
type Change struct {
	Name balancer.Name
	// Fields holds the fields of the service's table. If nil, the service is removed.
	Fields map[string]any
	// Where returns the origins of the fields, for messages. It is nil if the fields are not in a
	// file.
	Where balancer.Locator
	// Base is the revision of the definition that the change is based on, or 0 if the service did
	// not exist. If the definition has another revision in etcd, Apply writes nothing. If Base is
	// [Any], every definition is overwritten.
	Base int64
	// By is the author of the change, for the history.
	By string
	// Trace is the span of the command that makes the change, in the format of W3C's traceparent,
	// or "". It is stored in the history for the nodes that apply the change.
	Trace string
	// Rollback is the number of the version in the history that the change restores, or 0.
	Rollback int
	// Checked is the revision at which all services were read, and no other service had the claims
	// of this service. If a claim was added since, Apply writes nothing and returns a StaleError.
	// If the change adds claims, Apply sets Checked to its own revision, for the next change of the
	// same writer. If Checked is nil, claims are not checked.
	Checked *int64
	// AllowUnknown permits fields that this version does not know. Otherwise they are errors.
	AllowUnknown bool
}

// Any is the Base of a change that overwrites every definition.
const Any int64 = -1

// ConflictError means that a service was changed since it was read.
type ConflictError struct {
	Name balancer.Name
	// Revision is the current revision of the definition, or 0 if the service does not exist.
	Revision int64
	// By and At are who made the other change, and when, if the history contains it.
	By string
	At time.Time
}

func (e *ConflictError) Error() string {
	what := fmt.Sprintf("service %s was changed (now at revision %d)", e.Name, e.Revision)
	if e.Revision == 0 {
		what = fmt.Sprintf("service %s was removed", e.Name)
	}
	if e.By != "" {
		what += " by " + e.By
	}
	if !e.At.IsZero() {
		what += " at " + e.At.Local().Format(time.RFC3339)
	}
	return what + " since it was read: check it and repeat your change"
}

// Stored is a service as it is stored in etcd.
type Stored struct {
	Name   balancer.Name
	Fields map[string]any
	// Revision is the revision at which the service last changed.
	Revision int64
	// Service is the service that the fields define without defaults. It is nil if the fields have
	// an error, and Problems lists the errors.
	Service  *balancer.Service
	Problems []balancer.Problem
}

// Service reads a service. It returns nil if the service does not exist.
func (w *Writer) Service(ctx context.Context, name balancer.Name) (*Stored, error) {
	key := w.keys.Service(name)
	answer, err := w.client.Get(ctx, &etcdserverpb.RangeRequest{Key: []byte(key)})
	if err != nil || len(answer.Kvs) == 0 {
		return nil, err
	}
	return stored(answer.Kvs[0], name), nil
}

// maxTries is the maximum number of attempts at a write. An attempt fails if other writers write
// the same definition or, more often, allocate the same addresses.
const maxTries = 1000

// Apply makes a change in a single transaction that also adds an entry to the history and updates
// the service's addresses from pools. It keeps addresses that the service still requests, allocates
// missing addresses, and releases addresses that are no longer requested. Removing a service also
// removes its overrides, and its endpoints without a lease. If there are many such endpoints, they
// are removed before the service. Other endpoints belong to their registrars. An equal definition
// is not written again.
func (w *Writer) Apply(ctx context.Context, c Change) (client.Result, error) {
	text, wanted, err := c.encode()
	if err != nil {
		return client.Result{}, err
	}
	for attempt := range maxTries {
		before, err := w.Service(ctx, c.Name)
		if err != nil {
			return client.Result{}, err
		}
		past, err := w.History(ctx, c.Name)
		if err != nil {
			return client.Result{}, err
		}
		revision := before.revision()
		if c.Base != Any && c.Base != revision {
			return client.Result{}, conflict(c.Name, revision, past)
		}
		vips, err := w.addresses.plan(ctx, w.client, c.Name, wanted, revision, attempt)
		if err != nil {
			return client.Result{}, err
		}
		same := before == nil && c.Fields == nil || before != nil && c.Fields != nil && before.Matches(c.Fields)
		if same && !vips.changes() {
			return client.Result{Revision: revision}, nil
		}
		at, ok, err := w.write(ctx, c, text, before, past, vips, addsClaims(before, wanted, vips))
		if ok {
			w.addresses.wrote(c.Name, wanted, vips, at)
		} else {
			w.addresses.refused()
		}
		if err != nil || ok {
			return client.Result{Revision: at, Changed: ok}, err
		}
	}
	return client.Result{}, fmt.Errorf("other clients keep changing service %s: nothing was written. Try again", c.Name)
}

func (s *Stored) revision() int64 {
	if s == nil {
		return 0
	}
	return s.Revision
}

// longText is the length in bytes above which a service's text is written on a single line.
const longText = 64 << 10

// encode returns the text to write for a change, and the service that the text defines.
func (c *Change) encode() ([]byte, *balancer.Service, error) {
	if !c.Name.Valid() {
		return nil, nil, fmt.Errorf("%q is not a valid service name: names are DNS labels of a-z, 0-9 and -", c.Name)
	}
	if c.Fields == nil {
		return nil, nil, nil
	}
	unknown := balancer.SeverityError
	if c.AllowUnknown {
		unknown = balancer.SeverityWarning
	}
	service, problems := balancer.DecodeService(c.Name, c.Fields, nil, nil, unknown)
	if service == nil {
		return nil, nil, refusal(problems)
	}
	if n := len(service.Pools); n > schema.MaxAllocated {
		return nil, nil, fmt.Errorf("service %s requests %d addresses from pools; at most %d are allowed", c.Name, n, schema.MaxAllocated)
	}
	text, err := schema.Encode(c.Fields)
	if err == nil && len(text) > longText {
		var short bytes.Buffer
		err = json.Compact(&short, text)
		text = short.Bytes()
	}
	return text, service, err
}

// refusal combines the problems into a single error.
func refusal(problems []balancer.Problem) error {
	var errs []error
	for _, p := range problems {
		errs = append(errs, errors.New(p.String()))
	}
	return errors.Join(errs...)
}

// sameService reports whether two services are equal except for their origins.
func sameService(a, b *balancer.Service) bool {
	if a == nil || b == nil {
		return false
	}
	moved := *a
	moved.Origin = b.Origin
	return reflect.DeepEqual(&moved, b)
}

func (w *Writer) write(
	ctx context.Context, c Change, text []byte, before *Stored, past []HistoryEntry, vips allocation, claims bool,
) (int64, bool, error) {
	key := w.keys.Service(c.Name)
	same := client.Unchanged(key, before.revision())
	// Services never hold this many addresses unless the addresses were written manually.
	for ; len(vips.free) > maxFreed; vips.free = vips.free[maxFreed:] {
		ifs, then := allocation{free: vips.free[:maxFreed]}.ops(w.keys, c.Name)
		if _, ok, err := w.client.Commit(ctx, w.keys.Prefix+schema.VIPFolder, append(ifs, same), then); err != nil || !ok {
			return 0, false, err
		}
	}
	ifs, then := vips.ops(w.keys, c.Name)
	ifs = append(ifs, same)
	if c.Fields == nil && before == nil {
		return w.client.Commit(ctx, w.keys.Prefix+schema.VIPFolder, ifs, then) // the service was removed manually, without its addresses
	}
	entry, more, err := record(w.keys, c, text, before, past)
	if err != nil {
		return 0, false, err
	}
	ifs, then = append(ifs, more...), append(then, entry...)
	if c.Fields != nil {
		return w.claim(ctx, c, claims, ifs, append(then, client.Put(key, text, 0)))
	}
	unleased, err := w.removeUnleased(ctx, c.Name)
	if err != nil {
		return 0, false, err
	}
	for ; len(unleased) > maxOps; unleased = unleased[maxOps:] {
		// The service is removed last, so the removal can be repeated if it fails halfway.
		if _, ok, err := w.client.Commit(ctx, key, []*etcdserverpb.Compare{same}, unleased[:maxOps]); err != nil || !ok {
			return 0, false, err
		}
	}
	then = append(append(then, unleased...), client.Remove(key), client.RemoveAll(w.keys.OverridesOf(c.Name)))
	return w.client.Commit(ctx, key, ifs, then)
}

// claim commits a change that may add claims.
func (w *Writer) claim(
	ctx context.Context, c Change, claims bool, ifs []*etcdserverpb.Compare, then []*etcdserverpb.RequestOp,
) (int64, bool, error) {
	what := w.keys.Service(c.Name)
	if !claims {
		return w.client.Commit(ctx, what, ifs, then)
	}
	unclaimed, write, otherwise := claimOps(w.keys, c.Name, c.Checked)
	answer, err := w.client.Transact(ctx, what+" or "+w.keys.Prefix+schema.ClaimFolder, &etcdserverpb.TxnRequest{
		Compare: append(ifs, unclaimed...), Success: append(then, write...), Failure: otherwise,
	})
	switch {
	case err != nil:
		return 0, false, err
	case answer.Succeeded && c.Checked != nil:
		*c.Checked = answer.Header.Revision
	case len(otherwise) > 0 && len(answer.Responses[0].GetResponseRange().GetKvs()) > 0:
		return 0, false, &StaleError{c.Name, *c.Checked}
	}
	return answer.Header.Revision, answer.Succeeded, nil
}

// maxOps is the maximum number of operations of each kind in a transaction. maxFreed is the maximum
// number of addresses that a transaction releases. By default, etcd accepts 128 operations.
const (
	maxOps   = 64
	maxFreed = 16
)

// removeUnleased returns the operations that remove a service's endpoints without a lease.
func (w *Writer) removeUnleased(ctx context.Context, name balancer.Name) (ops []*etcdserverpb.RequestOp, err error) {
	err = w.client.ReadFolder(ctx, schema.EndpointFolder+string(name)+"/", new(int64), func(_ string, kv *mvccpb.KeyValue) {
		if kv.Lease == 0 {
			ops = append(ops, client.Remove(string(kv.Key)))
		}
	})
	return ops, err
}

// conflict returns the error for a change to a service that now has the given revision. It names
// the author of the other change if the history contains it. The history may have been read later
// than the service.
func conflict(name balancer.Name, revision int64, past []HistoryEntry) error {
	e := &ConflictError{Name: name, Revision: revision}
	for _, p := range slices.Backward(past) {
		if revision != 0 && p.Revision == revision || revision == 0 && p.Fields == nil {
			e.By, e.At = p.By, p.At
			break
		}
	}
	return e
}

// EditOverride changes a target's override. The function edit receives a copy of the override, or
// the zero value if there is none. It returns the new override, or nil to remove it. A note, which
// has no settings, has a lease of noteTTL. EditOverride may call edit again if another client
// writes at the same time.
func (w *Writer) EditOverride(ctx context.Context, t balancer.Target, edit func(balancer.Override) *balancer.Override) (client.Result, error) {
	return w.client.Edit(ctx, w.keys.Override(t), func(text []byte) (client.Edited, error) {
		var old balancer.Override
		value, _ := schema.DecodeValue(schema.Subject{Kind: schema.OverrideKind, Of: t.Service, Target: t}, text, balancer.Origin{}, nil)
		was, _ := value.(*balancer.Override)
		if was != nil {
			old = *was // an override that can't be parsed is overwritten
		}
		switch next := edit(old); {
		case next == nil:
			return client.Edited{}, nil
		case was != nil && reflect.DeepEqual(*next, old):
			return client.Edited{Text: text}, nil
		default:
			text, err := schema.Encode(next)
			return client.Edited{Text: text, Note: !next.IsSet()}, err
		}
	})
}
