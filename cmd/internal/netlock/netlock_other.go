//go:build !linux

package netlock

import "context"

// Lock stands for the lock on a network namespace. This system needs no lock, because vipd only
// supports userspace mode here.
type Lock struct{}

// Acquire returns nil, because no lock is needed on this system.
func Acquire(Holder) (*Lock, error) { return nil, nil }

// Ask returns an empty Holder.
func Ask() (h Holder) { return h }

// Run waits until ctx is done.
func (*Lock) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close does nothing.
func (*Lock) Close() error { return nil }

// Needed returns false, because no lock is needed on this system.
func Needed() bool { return false }
