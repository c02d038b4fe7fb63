package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"vipd/balancer"
)

// The chains of this dataplane are in the nat table. iptables accepts names of up to 28 characters
// (XT_EXTENSION_MAXNAMELEN).
const (
	// rootChain is the chain to which PREROUTING and OUTPUT jump.
	rootChain = "VIPD-SERVICES"
	// nodePrefix is the name prefix of the dispatch tree's other chains.
	nodePrefix = "VIPD-N-"
	// groupPrefix is the name prefix of a chain for some of a frontend's backends. stickyPrefix is
	// the name prefix of a chain for a single backend, if the frontend has affinity.
	groupPrefix  = "VIPD-E-"
	stickyPrefix = "VIPD-A-"
	// frontPrefix is the name prefix of frontends' chains. An IPv4 address follows, or "6-" and a
	// hash. For a port range, it is "4-" or "6-" and a hash.
	frontPrefix = "VIPD-"
)

// hooks returns the kernel's chains that jump to the root: PREROUTING for arriving packets, and
// OUTPUT for the node's own packets.
func hooks() []string { return []string{"PREROUTING", "OUTPUT"} }

// isOurs reports whether a chain of the nat table belongs to this dataplane.
func isOurs(chain string) bool {
	return chain == rootChain || isFront(chain) || strings.HasPrefix(chain, nodePrefix) ||
		strings.HasPrefix(chain, groupPrefix) || strings.HasPrefix(chain, stickyPrefix)
}

// isFront reports whether a chain is the first chain of a frontend.
func isFront(chain string) bool {
	rest, ok := strings.CutPrefix(chain, frontPrefix)
	return ok && rest != "" && rest[0] >= '0' && rest[0] <= '9'
}

// frontChain returns the name of a frontend's chain: VIPD-10.96.0.10:80/t. It contains a hash
// instead of an IPv6 address or a port range, because these are too long.
func frontChain(k balancer.Key) string {
	letter := "/" + string(k.Proto[:1])
	switch {
	case k.Addr.Is4() && k.Port.IsRange():
		return frontPrefix + "4-" + keyHash(k) + letter
	case k.Addr.Is4():
		return frontPrefix + k.Addr.String() + ":" + strconv.Itoa(int(k.Port)) + letter
	}
	return frontPrefix + "6-" + keyHash(k) + letter
}

// keyHash returns 64 bits of a cryptographic hash of k.
func keyHash(k balancer.Key) string {
	sum := sha256.Sum256([]byte(k.String()))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:8]))
}

// owner returns the frontend's hash (keyHash) from the name of a chain with groupPrefix or
// stickyPrefix.
func owner(chain string) string {
	rest := chain[min(len(groupPrefix), len(chain)):]
	hash, _, _ := strings.Cut(rest, "-")
	return hash
}

// isNode reports whether a chain is a node of the dispatch tree other than the root.
func isNode(chain string) bool { return strings.HasPrefix(chain, nodePrefix) }
