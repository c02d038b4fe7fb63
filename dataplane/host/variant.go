package host

import "vipd/dataplane/internal/xtables"

// Variant is a variant of iptables: auto (what the host's other rules use), nft or legacy.
type Variant = xtables.Variant
