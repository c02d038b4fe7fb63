package conntrack

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nlsock"
)

// WithReplies returns the flow whose reply direction is replies, or false if no such flow exists.
// Its cost does not depend on the number of flows.
func (c *Conn) WithReplies(proto balancer.Protocol, replies Tuple) (Flow, bool, error) {
	c.deleting.Lock()
	defer c.deleting.Unlock()
	c.request.B = c.request.B[:0]
	seq := c.deletes.Next()
	c.request.begin(messageGet, 0, seq, family(inet.Of(replies.Src.Addr())))
	c.request.tuple(ctaTupleReply, proto.Number(), replies, 0)
	c.request.End()
	err := c.deletes.Send(c.request.B)
	for err == nil {
		var m nlsock.Messages
		for m, err = c.deletes.Answer(); err == nil && m.Next(); {
			if m.Seq != seq { // an answer to a deletion
				continue
			}
			if m.Kind == messageNew {
				var f Flow
				ours, err := f.read(m.Body)
				return f, ours, err
			}
			err = cmp.Or(m.Refusal(), nlsock.ErrMalformed)
		}
		err = cmp.Or(err, m.Err)
	}
	if errors.Is(err, unix.ENOENT) {
		return Flow{}, false, nil
	}
	return Flow{}, false, fmt.Errorf("looking up a flow in conntrack: %w", err)
}
