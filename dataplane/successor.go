package dataplane

import (
	"context"

	"vipd/dataplane/handover"
)

// Yields is implemented by a dataplane that must make way for another dataplane in the same
// process.
type Yields interface {
	// Yield removes the objects that direct new connections to this dataplane. It is called after
	// another dataplane has replaced this one, because the kernel would prefer these objects to the
	// new dataplane's. Yield may drain connections until ctx is done. Connections that are
	// established or being established continue until Close, which is called next.
	Yield(ctx context.Context) error
}

// HandsOver is implemented by a dataplane that forwards traffic itself and can hand over its
// connections to the next process.
type HandsOver interface {
	// HandOver shuts the dataplane down. It sends open sockets, established connections and their
	// buffered bytes to the next process. Objects that direct new connections to this host remain.
	// Connections that can't be handed over drain until ctx is done.
	HandOver(ctx context.Context, to *handover.Queue) error
	// Inherit accepts the items that the previous process has handed over. It is called before the
	// first Apply.
	Inherit(items []handover.Item)
	// Discard closes the inherited items that no frontend has adopted. The engine calls it before
	// each Intact. If waiting is true, some wanted frontends are not applied yet, and Discard keeps
	// the items for a limited time.
	Discard(waiting bool)
}

// Inherit passes to d the items that the previous process has handed over. If d does not implement
// HandsOver, Inherit closes them, and the connections end.
func Inherit(d Dataplane, items []handover.Item) {
	if h, ok := As[HandsOver](d); ok {
		h.Inherit(items)
		return
	}
	for _, i := range items {
		i.Close()
	}
}
