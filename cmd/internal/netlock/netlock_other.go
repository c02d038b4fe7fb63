//go:build !linux

package netlock

import "context"

// Lock is the lock of the network namespace. There is none on this system, where vipd changes nothing but its own sockets.
type Lock struct{}

// Take takes no lock.
func Take(Holder) (*Lock, error) { return nil, nil }

// Ask returns a Holder that says nothing.
func Ask() (h Holder) { return h }

// Run waits for ctx to end.
func (*Lock) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close does nothing.
func (*Lock) Close() error { return nil }

// Needed reports that no lock is needed.
func Needed() bool { return false }
