package guard

import (
	"log/slog"

	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// Options is the part of the configuration that concerns the guard.
type Options struct {
	// Mode is the mode's requirements of the rules. SetMode changes it.
	Mode dataplane.Needs
	// MasqueradeBit is the bit of packet marks, 0 to 31, that requests masquerading. In connection
	// marks, the next bit means that vipd knows the connection, and the bit after it that the
	// connection keeps its source. Bit 0 follows bit 31.
	MasqueradeBit int
	// Variant is the variant of iptables whose filters must accept our connections.
	Variant xtables.Variant
	// Log receives each change at level Debug.
	Log *slog.Logger
}
