package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// plainError says what etcd or the way to it said, without the wrapping of gRPC.
type plainError struct {
	text  string
	cause error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.cause }

// Plain makes an error of the client readable; its cause stays.
func Plain(err error) error {
	var before *plainError
	if err == nil || errors.As(err, &before) {
		return err
	}
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	// A lost connection is told inside out; what helps is at the end.
	if _, inner, found := strings.Cut(text, `desc = "`); found {
		text, _, _ = strings.Cut(strings.TrimSuffix(inner, `"`), `", received`)
	}
	text = strings.TrimPrefix(text, "transport: Error while dialing: ")
	text = strings.TrimPrefix(text, handshakeFailed+": ")
	text = strings.TrimPrefix(text, "etcdserver: ")
	// A member that takes the connection and says nothing: gRPC hangs up on it, and reports its own closed socket.
	silent := strings.Contains(text, "error reading server preface") && strings.HasSuffix(text, net.ErrClosed.Error())
	if silent || errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded && !strings.Contains(text, "refused") {
		text = "no answer in time"
	}
	return &plainError{text, err}
}

// handshakeFailed begins what gRPC says where TLS has failed, and tlsRefused what TLS says where the other end has ended it.
const (
	handshakeFailed = "transport: authentication handshake failed"
	tlsRefused      = "remote error: tls"
)

// Untrusted reports whether err says that one end of a connection does not take the other's certificate.
func Untrusted(err error) bool {
	text := fmt.Sprint(Unwrapped(err))
	failed := strings.Contains(text, handshakeFailed) || strings.Contains(text, tlsRefused)
	return failed && strings.Contains(text, "cert") // else the other end said nothing, or does not speak TLS
}

// Is reports whether err is the server's error want.
func Is(err, want error) bool { return errors.Is(rpctypes.Error(Unwrapped(err)), want) }

// undecided reports whether err says that a member has not carried out an operation, or does not know, because there is no leader or it
// changed. The member may do better soon.
func undecided(err error) bool {
	return err != nil && slices.ContainsFunc([]error{
		rpctypes.ErrLeaderChanged, rpctypes.ErrNoLeader, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost,
	}, func(e error) bool { return Is(err, e) })
}

// Late reports whether err says that there was no answer in time.
func Late(err error) bool {
	cause := Unwrapped(err)
	switch {
	case errors.Is(cause, context.DeadlineExceeded), status.Code(cause) == codes.DeadlineExceeded:
		return true
	case status.Code(cause) == codes.Unknown: // which etcd makes of the end of a request
		return status.Convert(cause).Message() == context.DeadlineExceeded.Error()
	}
	return false
}

// Unreachable reports whether err says that no member of etcd has answered.
func Unreachable(err error) bool {
	return Late(err) || status.Code(Unwrapped(err)) == codes.Unavailable
}

// Full reports whether err says that etcd's database has reached its quota, so that it takes no writes.
func Full(err error) bool { return err != nil && Is(err, rpctypes.ErrNoSpace) }

// FullRemedy says what to do where etcd is Full.
const FullRemedy = "to write again: etcdctl compact, etcdctl defrag, etcdctl alarm disarm"

// Advised is err, with FullRemedy where that helps.
func Advised(err error) error {
	if !Full(err) {
		return err
	}
	return fmt.Errorf("%w; %s", err, FullRemedy)
}

// ended reports whether err says that a token has ended, or that the user needs one now, as authentication was turned on since.
func (c Config) ended(err error) bool {
	return Is(err, rpctypes.ErrInvalidAuthToken) || Is(err, rpctypes.ErrAuthOldRevision) || c.Username != "" && Is(err, rpctypes.ErrUserEmpty)
}

// Unwrapped returns what the client said.
func Unwrapped(err error) error {
	var p *plainError
	if errors.As(err, &p) {
		return p.cause
	}
	return err
}

// Denied adds to an error that comes of missing rights who lacks which right to a folder: to read, or to read and write.
func (c Config) Denied(err error, right, folder string) error {
	if err == nil || !Is(err, rpctypes.ErrPermissionDenied) && !Is(err, rpctypes.ErrUserEmpty) && !strings.Contains(err.Error(), "permission denied") {
		return err
	}
	return fmt.Errorf("%s may not %s %s: give its role the right to %[2]s that prefix: %[4]w", c.Who(), right, folder, err)
}

// Who is the user that etcd knows us as.
func (c Config) Who() string {
	if c.Username == "" {
		return "a client without username"
	}
	return "the user " + c.Username
}
