package etcd

import (
	"cmp"
	"context"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// scope is a folder or a single key that is read and followed.
type scope struct {
	// key is the folder, which ends in /, or the key; end is where the folder ends, "" for a single key.
	key, end string
	// without says what is missing for those who may not read it, which is not the end of the rest then; "" means it is
	// needed.
	without string
}

// folder is all keys that begin with key, which ends in /.
func folder(key string) scope { return scope{key: key, end: clientv3.GetPrefixRangeEnd(key)} }

// scopesOf returns what a Source follows: those that are needed first, then what some roles may not read. Node is whose
// configuration is read too; "" means none is.
func scopesOf(k Keys, node string) []scope {
	vips := folder(k.prefix + vipFolder)
	vips.without = `services whose vips say "auto" keep the addresses that were read before`
	policies, pools := folder(k.prefix+policyFolder), folder(k.prefix+poolFolder)
	policies.without = "addresses keep the settings that were read before"
	pools.without = "addresses of pools keep the settings that were read before"
	hosts := folder(k.prefix + hostFolder)
	hosts.without = "services may claim the addresses of other nodes, which this node then can't reach"
	all := []scope{folder(k.prefix + serviceFolder), folder(k.prefix + endpointFolder), folder(k.prefix + overrideFolder), vips, policies, pools, hosts}
	if node != "" {
		all = append(all, scope{key: k.NodeConfig(node), without: "this node keeps the configuration that was read before"})
	}
	return all
}

func (s scope) optional() bool { return s.without != "" }

// holds reports whether a key is in the scope.
func (s scope) holds(key string) bool {
	if s.end == "" {
		return key == s.key
	}
	return key >= s.key && key < s.end
}

// asker is how keys are asked for.
type asker func(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error)

// readScope reads a scope, at most limit keys at once, all at one revision: where that is 0, the first answer decides.
func readScope(
	ctx context.Context, ask asker, s scope, limit, revision *int64, each func(*etcdserverpb.RangeResponse) error,
) error {
	request := etcdserverpb.RangeRequest{Key: []byte(s.key), RangeEnd: []byte(s.end)}
	for {
		request.Limit, request.Revision = *limit, *revision
		answer, err := ask(ctx, &request)
		if status.Code(unwrapped(err)) == codes.ResourceExhausted && *limit > 1 {
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

// Forbidden reports whether err says that a right in etcd is missing.
func Forbidden(err error) bool {
	return is(err, rpctypes.ErrPermissionDenied) || is(err, rpctypes.ErrUserEmpty)
}

// readFolder reads a folder, all at one revision.
func (c *Client) readFolder(ctx context.Context, name string, revision *int64, each func(string, *mvccpb.KeyValue)) error {
	limit := UsualTiming().PageKeys
	all := folder(c.keys.prefix + name)
	return readScope(ctx, c.get, all, &limit, revision, func(answer *etcdserverpb.RangeResponse) error {
		for _, kv := range answer.Kvs {
			each(strings.TrimPrefix(string(kv.Key), all.key), kv)
		}
		return nil
	})
}
