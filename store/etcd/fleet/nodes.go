package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// Node holds the values of a node's keys.
type Node struct {
	Name string
	// Config is the node's configuration in etcd. It is nil if it does not exist or can't be
	// parsed.
	Config *schema.NodeConfig
	// Live exists while the node's daemon is connected to etcd. Status is its last status.
	Live   *schema.NodeLive
	Status *schema.NodeStatus
	// Problems lists the errors in the node's keys.
	Problems []balancer.Problem
}

// These are the results of Ready.
const (
	NodeReady    = "yes"
	NodeNotReady = "no"
	NodeStarting = "starting"
	NodeGone     = "gone"
)

// Ready reports whether the node has applied its first complete state. A node that has only a
// configuration counts as gone.
func (n *Node) Ready() string {
	switch {
	case n.Live == nil:
		return NodeGone
	case n.Status == nil:
		return NodeStarting
	case !n.Status.Ready:
		return NodeNotReady
	}
	return NodeReady
}

// Registry reads and configures the nodes of a fleet. Its methods are safe for concurrent use.
type Registry struct {
	client *client.Client
	keys   schema.Keys
}

// NewRegistry returns a registry.
func NewRegistry(c *client.Client) *Registry { return &Registry{c, c.Keys} }

// Nodes returns all nodes that exist or are configured, sorted by name. The result revision is the
// revision at which the keys that all nodes follow last changed. It is 0 if the user may not read
// all of these keys. A removed endpoint or override leaves no key, so its removal counts only after
// the next change.
func (r *Registry) Nodes(ctx context.Context) (nodes []Node, revision int64, err error) {
	if nodes, err = r.Statuses(ctx); err != nil {
		return nil, 0, err
	}
	if revision, err = r.newest(ctx); client.Forbidden(err) {
		return nodes, 0, nil
	}
	return nodes, revision, err
}

// newest returns the revision at which the keys that all nodes follow last changed. It also reads
// the history, because the history contains removed services.
func (r *Registry) newest(ctx context.Context) (revision int64, err error) {
	for _, s := range append(client.Scopes(r.keys, ""), client.Folder(r.keys.Prefix+schema.HistoryFolder)) {
		answer, err := r.client.Get(ctx, &etcdserverpb.RangeRequest{
			Key: []byte(s.Key), RangeEnd: []byte(s.End), Limit: 1, KeysOnly: true,
			SortOrder: etcdserverpb.RangeRequest_DESCEND, SortTarget: etcdserverpb.RangeRequest_MOD,
		})
		if err != nil {
			return 0, err
		}
		if len(answer.Kvs) > 0 {
			revision = max(revision, answer.Kvs[0].ModRevision)
		}
	}
	return revision, nil
}

// Statuses returns the nodes like [Registry.Nodes], but reads no other keys.
func (r *Registry) Statuses(ctx context.Context) (nodes []Node, err error) {
	byName := map[string]*Node{}
	err = r.client.ReadFolder(ctx, schema.NodeFolder, new(int64), func(rest string, kv *mvccpb.KeyValue) {
		name, key, _ := strings.Cut(rest, "/")
		if schema.CheckNode(name) != nil || key == schema.ConfigName && isNote(kv.Value) {
			return
		}
		if byName[name] == nil {
			byName[name] = &Node{Name: name}
		}
		byName[name].read(key, kv)
	})
	if err != nil {
		return nil, err
	}
	for _, n := range byName {
		nodes = append(nodes, *n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// Published returns the published values of the live nodes. It omits values that can't be parsed.
func (r *Registry) Published(ctx context.Context) (nodes snap.Map[balancer.NodeName, *balancer.Node], err error) {
	err = r.client.ReadFolder(ctx, schema.HostFolder, new(int64), func(name string, kv *mvccpb.KeyValue) {
		if n, _ := schema.DecodeHost(kv.Value, balancer.Origin{}); schema.CheckNode(name) == nil && n != nil {
			nodes = nodes.Set(balancer.NodeName(name), n.(*balancer.Node))
		}
	})
	return nodes, err
}

// isNote reports whether a node's configuration only names the user that removed the settings.
func isNote(text []byte) bool {
	value, problems := schema.DecodeValue(schema.Subject{Kind: schema.NodeConfigKind}, text, balancer.Origin{}, nil)
	config, _ := value.(*schema.NodeConfig)
	return config != nil && !config.HasSetting() && len(problems) == 0
}

// read decodes a key of the node, and adds its problems to the node's problems.
func (n *Node) read(key string, kv *mvccpb.KeyValue) {
	origin := balancer.Origin{Key: string(kv.Key), Revision: kv.ModRevision, Created: kv.CreateRevision}
	read := func(into any) bool {
		err := json.Unmarshal(kv.Value, into)
		if err != nil {
			n.Problems = append(n.Problems, schema.Problem("", origin, "the value can't be read: "+err.Error())...)
		}
		return err == nil
	}
	switch key {
	case schema.ConfigName:
		value, problems := schema.DecodeValue(schema.Subject{Kind: schema.NodeConfigKind, Node: n.Name}, kv.Value, origin, nil)
		n.Config, _ = value.(*schema.NodeConfig)
		n.Problems = append(n.Problems, problems...)
	case schema.LiveName:
		n.Live = &schema.NodeLive{} // the node is live even if the value is invalid
		read(n.Live)
	case schema.StatusName:
		var s schema.NodeStatus
		if read(&s) {
			n.Status = &s
		}
	}
}

// SetNode changes a node's configuration. The function edit receives the current configuration, or
// the zero value if there is none, and returns the new configuration. Fields from newer versions
// are preserved. SetNode may call edit again if another client writes at the same time.
func (r *Registry) SetNode(ctx context.Context, name string, edit func(schema.NodeConfig) schema.NodeConfig) (client.Result, error) {
	if err := schema.CheckNode(name); err != nil {
		return client.Result{}, err
	}
	key := r.keys.NodeConfig(name)
	return r.client.Edit(ctx, key, func(old []byte) (client.Edited, error) {
		fields, _ := schema.ParseObject(old)
		d, _ := schema.DecodeNodeConfig(fields, balancer.Origin{})
		if d == nil {
			d, fields = &schema.NodeConfig{}, nil // a configuration that can't be parsed is overwritten
		}
		next := edit(*d)
		if err := next.Check(); err != nil {
			return client.Edited{}, fmt.Errorf("configuring node %s: %w", name, err)
		}
		if next.Mode == d.Mode && next.Zone == d.Zone && next.Standby == d.Standby && fields != nil {
			return client.Edited{Text: old}, nil
		}
		return nodeText(next, fields, len(old) > 0)
	})
}

// nodeText combines c with the current fields. If c removes the last settings, only a note remains.
func nodeText(c schema.NodeConfig, fields map[string]any, was bool) (client.Edited, error) {
	if fields == nil {
		fields = map[string]any{}
	}
	signs := 0
	for field, value := range map[string]string{"mode": c.Mode, "zone": c.Zone, "by": c.By, "reason": c.Reason} {
		if fields[field] = value; value == "" {
			delete(fields, field)
		} else if field == "by" || field == "reason" {
			signs++
		}
	}
	if fields["standby"] = c.Standby; !c.Standby {
		delete(fields, "standby")
	}
	note := len(fields) == signs
	if note && (!was || signs == 0) {
		return client.Edited{}, nil
	}
	text, err := schema.Encode(fields)
	return client.Edited{Text: text, Note: note}, err
}
