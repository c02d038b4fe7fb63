package fleet

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/store/etcd/client"
	"vipd/store/etcd/schema"
)

// hostAddresses publishes a node's addresses (hosts/NODE). They are written separately, because a
// role from an earlier version of vipd may not write this key, and its node must still be visible.
type hostAddresses struct {
	key  string
	wake wake.Signal // sent if there is a text to write

	mu     sync.Mutex // guards text, large and denied
	text   []byte     // nil until the addresses are known
	large  error      // the reason why the newest addresses can't be published, or nil
	denied error      // the reason why etcd refuses the addresses, or nil

	// written is the text in etcd, and under is the ID of its lease. Only Run may use them.
	written []byte
	under   int64
}

// Publish publishes the node's addresses for other nodes. If there are too many, the last published
// addresses remain, and [Presence.Unpublished] returns the reason. It never blocks.
func (h *hostAddresses) Publish(n balancer.Node) {
	text, err := schema.Encode(n)
	if err == nil && len(text) > schema.MaxEntryText {
		err = fmt.Errorf("%s would have %d bytes, and vipd reads at most %d: remove addresses from this node, or networks from its "+
			"allowed_endpoints", h.key, len(text), schema.MaxEntryText)
	}
	h.mu.Lock()
	if h.large = err; err == nil {
		h.text = text
	}
	h.mu.Unlock()
	h.wake.Send()
}

// write writes the addresses with the lease, unless etcd already has them.
func (h *hostAddresses) write(ctx context.Context, lease *client.Lease) error {
	h.mu.Lock()
	text := h.text
	h.mu.Unlock()
	if text == nil {
		return nil
	}
	l := *lease // the lease's other keys are not affected
	l.Key, l.What = h.key, h.key
	if h.under == l.ID && bytes.Equal(h.written, text) {
		if other, err := l.Attempt(ctx, []*etcdserverpb.Compare{l.Ours(l.Key)}, nil); other == nil || err != nil {
			return err
		}
	}
	h.under = 0 // the write may have succeeded without an answer
	_, err := l.Attempt(ctx, nil, []*etcdserverpb.RequestOp{l.Put(l.Key, text)})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.denied = nil; client.Forbidden(err) {
		h.denied, err = err, nil
	} else if err == nil {
		h.written, h.under = text, l.ID
	}
	return err
}

// Unpublished returns the reason why the node's newest addresses can't be published, or nil.
func (h *hostAddresses) Unpublished() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.large, h.denied)
}
