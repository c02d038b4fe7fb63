package modeswitch

import (
	"context"
	"time"

	"vipd/dataplane"
)

// followLook is how often a follower of connections looks whether another mode serves.
const followLook = time.Second

// Follow calls tell for the connections that begin and end in the mode that serves, until ctx ends; then it returns nil. It calls
// lost where some may have been missed, as when another mode takes over.
func (c *Switch) Follow(ctx context.Context, tell func(began bool, n *dataplane.Connection), lost func()) error {
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			lost()
		}
		serving := c.Serving().Dataplane
		part, cancel := context.WithCancel(ctx)
		go c.endWith(part, serving, cancel) // ends with part
		err := serving.Follow(part, tell, lost)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// endWith calls cancel when another dataplane serves. It returns then, or when ctx ends.
func (c *Switch) endWith(ctx context.Context, serving dataplane.Dataplane, cancel func()) {
	look := time.NewTicker(followLook)
	defer look.Stop()
	for c.Serving().Dataplane == serving {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
	cancel()
}
