package dataplane

import (
	"context"

	"vipd/dataplane/handover"
)

// Yields is a dataplane that has to make way for another mode in the same process.
type Yields interface {
	// Yield removes what leads new connections here, after another dataplane has replaced this one:
	// in the kernel, the other would come second. It may drain until ctx ends. Connections that are
	// established, or on their way, continue until Close, which is called next.
	Yield(ctx context.Context) error
}

// HandsOver is a dataplane that forwards traffic itself and can pass it to the next process.
type HandsOver interface {
	// HandOver ends the dataplane and sends open sockets, established connections and their
	// buffered bytes to the next process. What leads new connections here stays. Connections that
	// can't be handed over drain until ctx ends.
	HandOver(ctx context.Context, to *handover.Queue) error
	// Inherit accepts what the previous process has handed over. It is called before the first
	// Apply.
	Inherit(items []handover.Item)
}

// Inherit gives d what the previous process has handed over. If d can't use it, the connections
// end.
func Inherit(d Dataplane, items []handover.Item) {
	if h, ok := As[HandsOver](d); ok {
		h.Inherit(items)
		return
	}
	for _, i := range items {
		i.Close()
	}
}
