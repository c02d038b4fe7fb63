// Package hash has the hashes by which hosts choose alike: backends for a client, checkers for a target. They have no
// seed, and must never change: processes of different versions, on every node and architecture, make the same choice.
package hash
