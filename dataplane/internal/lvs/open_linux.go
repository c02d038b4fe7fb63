package lvs

import (
	"context"
	"log/slog"
)

// Kernel is the IPVS of the kernel, in the network namespace that the process runs in.
type Kernel struct{ Conn }

// Open finds the kernel's IPVS, and loads it where it is not loaded: the error is ErrUnsupported, with the reason and what
// helps, where there is none. It logs what it loads.
func Open(ctx context.Context, log *slog.Logger) (*Kernel, error) {
	return nil, ErrUnsupported
}
