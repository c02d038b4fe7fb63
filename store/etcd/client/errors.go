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

// plainError is an error from etcd or from the connection, without gRPC's prefixes.
type plainError struct {
	text  string
	cause error
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.cause }

// Plain makes an error from etcd's client library readable. It preserves the cause.
func Plain(err error) error {
	_, ok := errors.AsType[*plainError](err)
	if err == nil || ok {
		return err
	}
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	// gRPC wraps the error of a lost connection several times. The useful part is at the end.
	if _, inner, found := strings.Cut(text, `desc = "`); found {
		text, _, _ = strings.Cut(strings.TrimSuffix(inner, `"`), `", received`)
	}
	text = strings.TrimPrefix(text, "transport: Error while dialing: ")
	text = strings.TrimPrefix(text, handshakeFailed+": ")
	text = strings.TrimPrefix(text, "etcdserver: ")
	// If a member accepts the connection but sends nothing, gRPC closes the connection and reports
	// that its own socket is closed.
	silent := strings.Contains(text, "error reading server preface") && strings.HasSuffix(text, net.ErrClosed.Error())
	if silent || errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded && !strings.Contains(text, "refused") {
		text = "no answer in time"
	}
	return &plainError{text, err}
}

// handshakeFailed is the start of gRPC's error after a failed TLS handshake. tlsRefused is the
// start of the TLS error if the other side ended the handshake.
const (
	handshakeFailed = "transport: authentication handshake failed"
	tlsRefused      = "remote error: tls"
)

// Untrusted reports whether err means that one side of a connection refused the other side's
// certificate.
func Untrusted(err error) bool {
	text := fmt.Sprint(Unwrapped(err))
	failed := strings.Contains(text, handshakeFailed) || strings.Contains(text, tlsRefused)
	return failed && strings.Contains(text, "cert") // otherwise the other side gave no reason, or does not use TLS
}

// Is reports whether err is the server error want.
func Is(err, want error) bool { return errors.Is(rpctypes.Error(Unwrapped(err)), want) }

// undecided reports whether a member has not executed an operation, or does not know whether it
// has, because etcd has no leader or the leader changed. The member may answer soon.
func undecided(err error) bool {
	return err != nil && slices.ContainsFunc([]error{
		rpctypes.ErrLeaderChanged, rpctypes.ErrNoLeader, rpctypes.ErrTimeout, rpctypes.ErrTimeoutDueToLeaderFail, rpctypes.ErrTimeoutDueToConnectionLost,
	}, func(e error) bool { return Is(err, e) })
}

func IsTimeout(err error) bool {
	cause := Unwrapped(err)
	switch {
	case errors.Is(cause, context.DeadlineExceeded), status.Code(cause) == codes.DeadlineExceeded:
		return true
	case status.Code(cause) == codes.Unknown: // etcd returns this code if a request's context has ended
		return status.Convert(cause).Message() == context.DeadlineExceeded.Error()
	}
	return false
}

// Unreachable reports whether err means that no etcd member has answered.
func Unreachable(err error) bool {
	return IsTimeout(err) || status.Code(Unwrapped(err)) == codes.Unavailable
}

// Full reports whether etcd's database has reached its quota, so etcd refuses writes.
func Full(err error) bool { return err != nil && Is(err, rpctypes.ErrNoSpace) }

// FullRemedy is the advice to users if etcd's database is full (see [Full]).
const FullRemedy = "to make etcd writable again, run etcdctl compact, etcdctl defrag and etcdctl alarm disarm"

// Advised adds FullRemedy to an error if etcd is full.
func Advised(err error) error {
	if !Full(err) {
		return err
	}
	return fmt.Errorf("%w; %s", err, FullRemedy)
}

// ended reports whether err means that the token has expired, or that the user needs a token
// because authentication was enabled.
func (c Config) ended(err error) bool {
	return Is(err, rpctypes.ErrInvalidAuthToken) || Is(err, rpctypes.ErrAuthOldRevision) || c.Username != "" && Is(err, rpctypes.ErrUserEmpty)
}

// Unwrapped returns the client's original error.
func Unwrapped(err error) error {
	if p, ok := errors.AsType[*plainError](err); ok {
		return p.cause
	}
	return err
}

// Denied adds the user, the right (to read, or to read and write) and the folder to an error about
// missing rights.
func (c Config) Denied(err error, right, folder string) error {
	if err == nil || !Is(err, rpctypes.ErrPermissionDenied) && !Is(err, rpctypes.ErrUserEmpty) && !strings.Contains(err.Error(), "permission denied") {
		return err
	}
	return fmt.Errorf("%s may not %s %s: give its role permission to %[2]s that prefix: %[4]w", c.Who(), right, folder, err)
}

// Who describes the user of the client.
func (c Config) Who() string {
	if c.Username == "" {
		return "a client without username"
	}
	return "the user " + c.Username
}
