// Package hash provides the hashes through which all hosts make the same choices: backends for
// clients, and checkers for targets. The hashes have no seed and must never change, because nodes
// may run different versions on different architectures.
package hash
