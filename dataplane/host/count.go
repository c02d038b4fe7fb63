package host

// useCounter finds out cheaply what uses our chains.
type useCounter interface {
	// differs returns a chain of the table that is not used as often as want says: its rules, and those of all chains
	// that lead to it, counted together; "" where there is none.
	differs(tool ruleKernel, table string, want map[string]int) (chain string, err error)
	close()
}
