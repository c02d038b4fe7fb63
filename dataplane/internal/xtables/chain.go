package xtables

// Chain is one chain as it shall be.
type Chain struct {
	// Name is the chain's, of up to 28 characters. A chain of that name is replaced, rules of other chains go on leading
	// to it.
	Name string
	// Rules are in the syntax of iptables-restore, without "-A" and the name.
	Rules []string
}

// Group is chains that have to change together: one transaction, all or nothing.
type Group struct {
	// Write are the chains to create or replace. They may lead to each other in any order, and to chains that exist or
	// that an earlier group writes.
	Write []Chain
	// Delete are the chains to empty and delete, after those that are written: rules must not lead to them any more.
	// Those that are absent are no error.
	Delete []string
}
