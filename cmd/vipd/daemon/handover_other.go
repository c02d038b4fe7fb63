//go:build !linux

package daemon

import (
	"context"
	"net"

	"vipd/dataplane/handover"
)

func fromStore() (*handover.Queue, error)                           { return nil, nil }
func requestHandover(string) (*handover.Queue, error)               { return nil, handover.ErrUnsupported }
func listenHandover(string) (*net.UnixListener, error)              { return nil, nil }
func (*Daemon) storeQueue(context.Context) (*handover.Queue, error) { return nil, nil }

// awaitSuccessor waits until ctx is done.
func (*Daemon) awaitSuccessor(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
