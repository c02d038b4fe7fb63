//go:build !linux

package netlock

import "context"

// Lock is the lock of the network namespace. It does not exist on this system, because vipd changes
// only its own sockets here.
type Lock struct{}

// Acquire returns no lock.
func Acquire(Holder) (*Lock, error) { return nil, nil }

// Ask returns an empty Holder.
func Ask() (h Holder) { return h }

// Run waits for the end of ctx.
func (*Lock) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close does nothing.
func (*Lock) Close() error { return nil }

// Needed reports that no lock is needed.
func Needed() bool { return false }
