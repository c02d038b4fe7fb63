//go:build !linux

package handover

// Queue is a connection that carries Items. There is none on this system.
type Queue struct{}

// Send says that this system can't hand over.
func (*Queue) Send([]byte, ...int) error { return ErrUnsupported }

// All says that this system can't hand over.
func (*Queue) All() ([]Item, error) { return nil, ErrUnsupported }

// Close does nothing.
func (*Queue) Close() error { return nil }

// Close does nothing: an item has no descriptors here.
func (Item) Close() {}
