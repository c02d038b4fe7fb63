//go:build !linux

package handover

// Queue is a connection that transfers Items. It is unavailable on this system.
type Queue struct{}

// Send returns ErrUnsupported.
func (*Queue) Send([]byte, ...int) error { return ErrUnsupported }

// All returns ErrUnsupported.
func (*Queue) All() ([]Item, error) { return nil, ErrUnsupported }

// Close does nothing.
func (*Queue) Close() error { return nil }

// Close does nothing, because items have no descriptors on this system.
func (Item) Close() {}
