package api

import (
	"context"
	"net"
)

// Listen listens on a Unix socket. network is "unix" or "unixpacket". Until the socket's mode is
// changed, only this user and root can connect to it. On Linux this is true from the start,
// regardless of the umask.
func Listen(network, path string) (*net.UnixListener, error) {
	l, err := (&net.ListenConfig{Control: private}).Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}
