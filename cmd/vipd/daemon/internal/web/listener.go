package web

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
	"vipd/balancer/lib/wake"
	"vipd/cmd/vipd/daemon/internal/httpserve"
)

// Listener listens on api.http. If another program uses the port, or the address is missing, it
// reports a problem and retries. vipd starts anyway, because services don't need api.http.
type Listener struct {
	at, file string
	state    atomic.Pointer[listening]
}

// listening is the result of the last attempt to listen.
type listening struct {
	net.Listener
	err error
}

// listenPause is the time between two attempts to listen.
const listenPause = 2 * time.Second

// Listen starts to listen at an address. It returns nil if the address is "". It only returns
// errors that a retry can't fix. file is the path of the configuration, for problems.
func Listen(at, file string, log *slog.Logger) (*Listener, error) {
	if at == "" {
		return nil, nil
	}
	l := &Listener{at: at, file: file}
	err := l.listen()
	if sockerr.Is(err, syscall.EADDRINUSE, syscall.EADDRNOTAVAIL) {
		log.Error("metrics and health are not served", "field", "api.http", "err", err)
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening api.http, for metrics and health (set another address, or \"\" to turn it off): %w", err)
	}
	return l, nil
}

func (l *Listener) listen() error {
	socket, err := net.Listen("tcp", l.at)
	l.state.Store(&listening{socket, err})
	return err
}

// Serve answers requests with h until ctx is done.
func (l *Listener) Serve(ctx context.Context, h http.Handler, log *slog.Logger) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	for l.state.Load().err != nil {
		if !wake.Sleep(ctx, listenPause) {
			return nil
		}
		if l.listen() == nil {
			log.Info("metrics and health are served", "field", "api.http", "address", l.Addr())
		}
	}
	return httpserve.Serve(ctx, l.state.Load(), h, Bounds())
}

// Addr returns the address on which metrics and health are served, or nil if they are not served.
func (l *Listener) Addr() net.Addr {
	if l == nil || l.state.Load().err != nil {
		return nil
	}
	return l.state.Load().Listener.Addr()
}

// Close closes the listener.
func (l *Listener) Close() error {
	if l.Addr() == nil {
		return nil
	}
	return l.state.Load().Listener.Close()
}

// Problems reports that api.http can't be opened, or warns if other hosts can read it.
func (l *Listener) Problems() []balancer.Problem {
	if l == nil {
		return nil
	}
	text := ""
	if err := l.state.Load().err; err != nil {
		text = fmt.Sprintf("metrics, health and the status page are not served: %v; vipd tries again every %s: "+
			"free the port, or set another address and restart vipd", err, listenPause)
	} else if text = exposure(l.Addr()); text == "" {
		return nil
	}
	return []balancer.Problem{{Severity: balancer.SeverityWarning, Origin: balancer.Origin{File: l.file}, Field: "api.http", Text: text}}
}
