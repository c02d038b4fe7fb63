package xtables

import (
	"context"
	"fmt"
	"strings"
)

// Rules returns the rules of a chain that exists, in order, as -S prints them but without "-A" and the chain's name. Its
// cost grows with the chain.
func (t *Tool) Rules(ctx context.Context, table, chain string) (rules []string, err error) {
	stdout, stderr, err := t.run(ctx, "", t.program, "--wait", fmt.Sprint(waitSeconds), "-t", table, "-S", chain)
	if err != nil {
		return nil, fmt.Errorf("reading chain %s of table %s: %w", chain, table, failure(t.program, "", stderr, err))
	}
	for line := range strings.Lines(stdout) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+chain+" "); ok {
			rules = append(rules, rule)
		}
	}
	return rules, nil
}
