package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"vipd/balancer"
)

// The chains of this dataplane, all in the nat table. iptables takes names of up to 28 characters
// (XT_EXTENSION_MAXNAMELEN).
const (
	// rootChain is where PREROUTING and OUTPUT lead to.
	rootChain = "VIPD-SERVICES"
	// nodePrefix begins the names of the dispatch tree's other chains.
	nodePrefix = "VIPD-N-"
	// groupPrefix begins the names of chains that hold a part of a frontend's backends, and stickyPrefix of those that
	// are one backend of a frontend with affinity.
	groupPrefix  = "VIPD-E-"
	stickyPrefix = "VIPD-A-"
	// frontPrefix begins the names of frontends' chains: an IPv4 address follows, or "6-" and a hash.
	frontPrefix = "VIPD-"
)

// hooks are the kernel's chains that lead to the root: others' traffic, and the node's own.
func hooks() []string { return []string{"PREROUTING", "OUTPUT"} }

// isOurs reports whether a chain of the nat table is this dataplane's.
func isOurs(chain string) bool {
	return chain == rootChain || isFront(chain) || strings.HasPrefix(chain, nodePrefix) ||
		strings.HasPrefix(chain, groupPrefix) || strings.HasPrefix(chain, stickyPrefix)
}

// isFront reports whether a chain is a frontend's.
func isFront(chain string) bool {
	rest, ok := strings.CutPrefix(chain, frontPrefix)
	return ok && rest != "" && rest[0] >= '0' && rest[0] <= '9'
}

// frontChain is the name of a frontend's chain: VIPD-10.96.0.10:80/t, or, since IPv6 addresses don't fit, a hash.
func frontChain(k balancer.Key) string {
	letter := "/" + string(k.Proto[:1])
	if k.Addr.Is4() {
		return frontPrefix + k.Addr.String() + ":" + strconv.Itoa(int(k.Port)) + letter
	}
	return frontPrefix + "6-" + keyHash(k) + letter
}

// keyHash is 64 bits of a hash of k that can't be made to collide with another key's.
func keyHash(k balancer.Key) string {
	sum := sha256.Sum256([]byte(k.String()))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:8]))
}

// owner returns the hash in the name of a chain that holds backends.
func owner(chain string) string {
	rest := chain[min(len(groupPrefix), len(chain)):]
	hash, _, _ := strings.Cut(rest, "-")
	return hash
}

// isNode reports whether a chain is one of the dispatch tree's but the root.
func isNode(chain string) bool { return strings.HasPrefix(chain, nodePrefix) }
