package userspace

import (
	"context"
	"fmt"

	"vipd/dataplane/internal/xtables"
)

// inspect removes what an earlier process has left, the first time, and later compares what is there with what we
// left: the next commit mends it.
func (r *redirect) inspect(ctx context.Context) ([]string, error) {
	var damage []string
	for _, family := range xtables.Families() {
		y := r.families[family]
		if y == nil {
			continue
		}
		found, err := y.inspect(ctx)
		if err != nil {
			return nil, err
		}
		if found != "" {
			damage = append(damage, found)
		}
	}
	return damage, nil
}

func (y *redirectFamily) inspect(ctx context.Context) (string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.made {
		y.unsure = true
		for _, tool := range xtables.Existing(ctx, y.name) { // it may have used another backend
			if err := remove(ctx, tool); err != nil {
				return "", err
			}
		}
		return "", nil
	}
	damage, err := y.compareLocked(ctx)
	if damage != "" || err != nil {
		y.unsure, y.jumps = true, false
	}
	return damage, err
}

// compareLocked says what is not as we left it.
func (y *redirectFamily) compareLocked(ctx context.Context) (string, error) {
	there, err := y.tool.Rules(ctx, "nat", chain)
	if err != nil {
		if exists, lookErr := y.tool.ChainExists(ctx, "nat", chain); !exists && lookErr == nil {
			return fmt.Sprintf("chain %s is missing (%s)", chain, y.name), nil
		}
		return "", err
	}
	for _, hook := range hooks() {
		there, err := y.tool.HasJump(ctx, "nat", hook, "-j", chain)
		if err != nil {
			return "", err
		}
		if !there {
			return fmt.Sprintf("the jump from %s to %s is missing (%s)", hook, chain, y.name), nil
		}
	}
	if len(there) == 0 || there[0] != keeper { // the order of the others, which match different packets, does not matter
		return fmt.Sprintf("the rule that keeps conntrack is not the first of %s (%s)", chain, y.name), nil
	}
	lines := make(map[string]bool, len(there))
	for _, line := range there {
		lines[line] = true
	}
	for k, text := range y.rules {
		if !lines[text] {
			return fmt.Sprintf("the rule of %s is missing in %s", k, chain), nil
		}
	}
	if len(there) != len(y.rules)+1 {
		return fmt.Sprintf("%s has rules that are not ours (%s)", chain, y.name), nil
	}
	return "", nil
}

// intact looks, in one family after the other, for what is missing.
func (r *redirect) intact(ctx context.Context) (string, error) {
	for _, family := range xtables.Families() {
		if y := r.families[family]; y != nil {
			if reason, err := y.intact(ctx); reason != "" || err != nil {
				return reason, err
			}
		}
	}
	return "", nil
}

// intact compares, where anyone has changed rules since the last time.
func (y *redirectFamily) intact(ctx context.Context) (string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if !y.jumps || y.unsure {
		return "", nil
	}
	ours := func() int { return len(y.rules) + 1 + 2 + len(hooks()) } // with the keeper, the chain and its jumps
	return y.look.Probe(y.tool, "nat", ours, func() (string, error) { return y.compareLocked(ctx) })
}
