// Package deps holds the tree to its own architecture: which folder may import which, and a few rules that keep every
// package alike. The rules are a table in deps_test.go, each with its reason; a new folder usually needs no new rule.
package deps
