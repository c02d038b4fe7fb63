package xtables

import (
	"context"
	"errors"
	"fmt"
)

// Try writes rules to a trial chain of the table, reads them back, and removes it: whether this kernel and these
// programs know the matches and targets that the rules use. The error says what was refused, or that not all is there that was
// written. read is how these programs print the rules.
func (t *Tool) Try(ctx context.Context, table string, rules ...string) (read []string, err error) {
	if _, err := t.Write(ctx, table, []Group{{Write: []Chain{{Name: TrialChain, Rules: rules}}}}); err != nil {
		return nil, fmt.Errorf("trying rules: %w", err)
	}
	read, err = t.Rules(ctx, table, TrialChain)
	if err == nil && len(read) != len(rules) {
		err = fmt.Errorf("of %d rules written %d are there", len(rules), len(read))
	}
	if err := errors.Join(err, t.Restore(ctx, endTrial(table))); err != nil {
		return nil, fmt.Errorf("trying rules: %w", err)
	}
	return read, nil
}
