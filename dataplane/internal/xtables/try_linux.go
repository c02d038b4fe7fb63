package xtables

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// trialEnd is how long removing a trial chain may take.
const trialEnd = 20 * time.Second

// Try writes rules to a trial chain in the table, reads them, and removes the chain. This shows
// whether the kernel and the iptables programs support the rules' matches and targets. The error
// names the refused or missing rule. read holds the rules as the programs print them. The trial
// chain is removed even after ctx is done.
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

// readTrial reads the n rules of the trial chain.
func (t *Tool) readTrial(ctx context.Context, table string, n int) (read []string, err error) {
	read, err = t.Rules(ctx, table, TrialChain)
	if err == nil && len(read) != n {
		err = fmt.Errorf("%d rules were written, but the kernel has %d", n, len(read))
	}
	return read, err
}
