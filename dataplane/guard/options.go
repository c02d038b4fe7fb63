package guard

import (
	"log/slog"

	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// Options configures a Guard.
type Options struct {
	// Mode holds the mode's requirements. [Guard.SetMode] replaces them.
	Mode dataplane.Needs
	// MasqueradeBit is the bit of connection marks, 0 to 31, that requests masquerading. The next
	// bit marks connections through vipd, and the bit after it marks connections that keep their
	// source. Bit 0 follows bit 31.
	MasqueradeBit int
	// ClampMSS reports whether the segment size of connections is always limited to their path MTU.
	// If false, it is limited only while links or routes have different MTUs (see [Interface]).
	ClampMSS bool
	// FastPath holds the names of the devices between which established connections skip netfilter
	// and routing, or only FastPathAuto. FastPathHardware reports whether the devices' hardware
	// forwards these connections.
	FastPath         []string
	FastPathHardware bool
	// Variant is the iptables variant whose filters must accept our connections.
	Variant xtables.Variant
	// Log receives each change at level Debug.
	Log *slog.Logger
}
