package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Try writes rules to a trial chain of the table, reads them back, and removes it: whether this kernel and these
// programs know the matches and targets that the rules use. The error says what was refused, or that what is read back
// is not what was written. read is how these programs print the rules.
func (t *Tool) Try(ctx context.Context, table string, rules ...string) (read []string, err error) {
	t.trial.Lock()
	defer t.trial.Unlock()
	if _, err := t.Write(ctx, table, []Group{{Write: []Chain{{Name: trialChain, Rules: rules}}}}); err != nil {
		return nil, fmt.Errorf("trying rules: %w", err)
	}
	read, err = t.Rules(ctx, table, trialChain)
	if err == nil {
		err = sameParts(rules, read)
	}
	if err := errors.Join(err, t.DeleteChains(ctx, table, trialChain)); err != nil {
		return nil, fmt.Errorf("trying rules: %w", err)
	}
	return read, nil
}

// sameParts compares rules as written with what was read back, by the matches and targets that they name: the rest may
// be written in several ways.
func sameParts(written, read []string) error {
	if len(read) != len(written) {
		return fmt.Errorf("of %d rules written %d are there", len(written), len(read))
	}
	for i, rule := range written {
		for _, part := range partsOf(rule) {
			if !slices.Contains(partsOf(read[i]), part) {
				return fmt.Errorf("the rule %q reads back as %q", rule, read[i])
			}
		}
	}
	return nil
}

// partsOf returns the matches and the target of a rule.
func partsOf(rule string) []string {
	var parts []string
	words := strings.Fields(rule)
	for i, w := range words {
		if (w == "-m" || w == "-j" || w == "-g") && i+1 < len(words) {
			parts = append(parts, w+" "+words[i+1])
		}
	}
	return parts
}
