package client

import (
	"cmp"
	"context"
	"strings"
	"vipd/store/etcd/schema"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Scope is a folder or a single key that a link reads and follows.
type Scope struct {
	// Key is the key, or the folder, which ends in /. End is the end of the folder's range, or ""
	// for a single key.
	Key, End string
	// Without describes what is missing if the user may not read the scope. In this case, the other
	// scopes are still followed. If Without is "", the scope is required.
	Without string
}

// Folder returns the scope of all keys that begin with key, which ends in /.
func Folder(key string) Scope { return Scope{Key: key, End: clientv3.GetPrefixRangeEnd(key)} }

// Scopes returns the scopes of a Source. Required scopes are first, followed by optional scopes,
// which some roles may not read. The parameter node is the node whose configuration is read. It may
// be "".
func Scopes(k schema.Keys, node string) []Scope {
	vips := Folder(k.Prefix + schema.VIPFolder)
	vips.Without = `services with vips = ["auto"] keep the addresses that were read before`
	policies, pools := Folder(k.Prefix+schema.PolicyFolder), Folder(k.Prefix+schema.PoolFolder)
	policies.Without = "addresses keep the settings that were read before"
	pools.Without = "pool addresses keep the settings that were read before"
	hosts := Folder(k.Prefix + schema.HostFolder)
	hosts.Without = "services might claim other nodes' addresses, and this node then can't reach those nodes"
	pending := Scope{Key: k.Pending(), Without: "pending changes (vipctl apply --confirm) do not take effect on this node"}
	all := []Scope{Folder(k.Prefix + schema.ServiceFolder), Folder(k.Prefix + schema.EndpointFolder), Folder(k.Prefix + schema.OverrideFolder), vips, policies, pools, hosts, pending}
	if node != "" {
		all = append(all, Scope{Key: k.NodeConfig(node), Without: "this node keeps the configuration that was read before"})
	}
	return all
}

// Optional reports whether the other scopes are followed if this scope may not be read.
func (s Scope) Optional() bool { return s.Without != "" }

// Holds reports whether a key is in the scope.
func (s Scope) Holds(key string) bool {
	if s.End == "" {
		return key == s.Key
	}
	return key >= s.Key && key < s.End
}

// Asker reads keys.
type Asker func(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error)

// ReadScope reads a scope in pages of at most limit keys, all at one revision. It calls the
// function each with each page. If the revision is 0, the first page determines it. If a page is
// too large for an answer, ReadScope reduces the limit.
func ReadScope(
	ctx context.Context, ask Asker, s Scope, limit, revision *int64, each func(*etcdserverpb.RangeResponse) error,
) error {
	request := etcdserverpb.RangeRequest{Key: []byte(s.Key), RangeEnd: []byte(s.End)}
	for {
		request.Limit, request.Revision = *limit, *revision
		answer, err := ask(ctx, &request)
		if status.Code(Unwrapped(err)) == codes.ResourceExhausted && *limit > 1 {
			*limit = max(1, *limit/4) // the page is larger than an answer may be
			continue
		}
		if err != nil {
			return err
		}
		*revision = cmp.Or(*revision, answer.Header.Revision)
		if err := each(answer); err != nil {
			return err
		}
		if !answer.More || len(answer.Kvs) == 0 {
			return nil
		}
		request.Key = append(append([]byte(nil), answer.Kvs[len(answer.Kvs)-1].Key...), 0)
	}
}

// Forbidden reports whether err means that the user lacks a permission in etcd.
func Forbidden(err error) bool {
	return Is(err, rpctypes.ErrPermissionDenied) || Is(err, rpctypes.ErrUserEmpty)
}

// ReadFolder reads a folder at a single revision.
func (c *Client) ReadFolder(ctx context.Context, name string, revision *int64, each func(string, *mvccpb.KeyValue)) error {
	limit := UsualTiming().PageKeys
	all := Folder(c.Keys.Prefix + name)
	return ReadScope(ctx, c.Get, all, &limit, revision, func(answer *etcdserverpb.RangeResponse) error {
		for _, kv := range answer.Kvs {
			each(strings.TrimPrefix(string(kv.Key), all.Key), kv)
		}
		return nil
	})
}
