// Package deps checks the architecture of the tree: which folder may import which, and a few rules
// that all packages share. The rules are a table in deps_test.go, each with its reason; a new
// folder usually needs no new rule.
package deps
