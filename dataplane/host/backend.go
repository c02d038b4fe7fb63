package host

import "vipd/dataplane/internal/xtables"

// Backend is a variant of iptables: auto (what the host's other rules use), nft or legacy.
type Backend = xtables.Backend
