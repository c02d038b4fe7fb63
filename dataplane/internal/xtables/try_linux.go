package xtables

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// trialEnd bounds the removal of what a trial has written.
const trialEnd = 20 * time.Second

// Try writes rules to a trial chain of the table, reads them back, and removes it: whether this kernel and these
// programs know the matches and targets that the rules use. The error says what was refused, or that not all is there that was
// written. read is how these programs print the rules. Nothing is left where ctx ends meanwhile, either.
func (t *Tool) Try(ctx context.Context, table string, rules ...string) (read []string, err error) {
	_, err = t.Write(ctx, table, []Group{{Write: []Chain{{Name: TrialChain, Rules: rules}}}})
	if err == nil {
		read, err = t.readTrial(ctx, table, len(rules))
	} else if ctx.Err() == nil { // nothing was written
		return nil, fmt.Errorf("trying rules: %w", err)
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), trialEnd)
	defer cancel()
	if err := errors.Join(err, t.Restore(ending, endTrial(table))); err != nil {
		return nil, fmt.Errorf("trying rules: %w", err)
	}
	return read, nil
}

// readTrial reads the rules of the trial chain, of which there are n.
func (t *Tool) readTrial(ctx context.Context, table string, n int) (read []string, err error) {
	read, err = t.Rules(ctx, table, TrialChain)
	if err == nil && len(read) != n {
		err = fmt.Errorf("of %d rules written %d are there", n, len(read))
	}
	return read, err
}
