package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moby/ipvs"
)

// Timeouts implements Conn.
func (k *Client) Timeouts(ctx context.Context) (Timeouts, error) {
	c, err := withHandle(ctx, k, (*ipvs.Handle).GetConfig)
	if err != nil {
		return Timeouts{}, fmt.Errorf("reading IPVS timeouts: %w", err)
	}
	return Timeouts{TCP: c.TimeoutTCP, TCPFin: c.TimeoutTCPFin, UDP: c.TimeoutUDP}, nil
}

// SetTimeouts implements Conn.
func (k *Client) SetTimeouts(ctx context.Context, t Timeouts) error {
	if err := t.Invalid(); err != nil {
		return err
	}
	_, err := withHandle(ctx, k, func(h *ipvs.Handle) (struct{}, error) {
		return struct{}{}, h.SetConfig(&ipvs.Config{TimeoutTCP: t.TCP, TimeoutTCPFin: t.TCPFin, TimeoutUDP: t.UDP})
	})
	if err != nil {
		return fmt.Errorf("setting IPVS timeouts: %w", err)
	}
	return nil
}

// withHandle calls do with a new handle. Like any exchange, the call has a time limit. Handles are
// not shared, because a handle without an answer waits forever, and so do goroutines that share it.
func withHandle[T any](ctx context.Context, k *Client, do func(*ipvs.Handle) (T, error)) (T, error) {
	// Without IPVS, a handle reports success for everything and never detects that IPVS is loaded
	// later. So IPVS must be loaded first.
	if _, err := k.Service(ctx, nobody); err != nil && !errors.Is(err, ErrNoService) {
		return *new(T), err
	}
	var handle atomic.Pointer[ipvs.Handle]
	var gaveUp atomic.Bool
	answer, late, err := watch(ctx, k.limit, func() (T, error) {
		h, err := ipvs.New("")
		if err != nil {
			return *new(T), err
		}
		defer h.Close()
		handle.Store(h)
		if gaveUp.Load() {
			return *new(T), context.DeadlineExceeded
		}
		return do(h)
	})
	gaveUp.Store(late)
	if h := handle.Load(); late && h != nil {
		go h.Close() // interrupts the handle's wait
	}
	return answer, err
}
