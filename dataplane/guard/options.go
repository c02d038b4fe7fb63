package guard

import (
	"log/slog"

	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// Options are the parts of the configuration that concern the guard.
type Options struct {
	// Mode is what the rules depend on of the mode in use. SetMode changes it.
	Mode dataplane.Needs
	// MasqueradeBit is the bit, 0 to 31, of packets' marks that stands for masquerading. The next bit of connections'
	// marks says that vipd knows them, and the one after that they keep their source; after 31 comes 0.
	MasqueradeBit int
	// Variant is the variant of iptables whose filters have to accept our connections.
	Variant xtables.Variant
	// Log gets each change at Debug level.
	Log *slog.Logger
}
