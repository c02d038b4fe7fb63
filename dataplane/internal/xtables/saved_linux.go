package xtables

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// Lead is a rule in another chain that jumps to a chain with the prefix (see [Tool.Saved]).
type Lead struct {
	// Chain is the chain that contains the rule, such as PREROUTING.
	Chain string
	// Rule is the rule as iptables-save prints it, without "-A" and the chain's name.
	Rule string
	// Target is the chain to which the rule jumps.
	Target string
}

// Saved calls visit for each chain in the table whose name has the prefix. The chain's rules are as
// iptables-save prints them, without "-A" and the chain's name. Saved returns the rules in other
// chains that jump to these chains. It keeps only one chain's rules in memory at a time. If visit
// returns an error, Saved stops and returns it. If iptables can't read the table, Saved returns
// ErrIncompatible.
func (t *Tool) Saved(ctx context.Context, table, prefix string, visit func(chain string, rules []string) error) ([]Lead, error) {
	r := savedReader{prefix: prefix, visit: visit, declared: map[string]bool{}}
	program := t.program + "-save"
	stderr, err := stream(ctx, r.line, program, "-t", table)
	_, ok := errors.AsType[*exec.ExitError](err)
	if r.err == nil && ok && ctx.Err() == nil {
		return nil, failure(program, "", stderr, err)
	}
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return nil, fmt.Errorf("reading table %s: %w", table, err)
	}
	return r.leads, nil
}

// savedReader parses a save program's output, which consists of all chains, followed by the rules
// of each chain.
type savedReader struct {
	prefix   string
	visit    func(chain string, rules []string) error
	declared map[string]bool // chains that have not been visited yet
	chain    string          // the current rules' chain; "" for other programs' chains
	rules    []string
	leads    []Lead
	err      error
}

func (r *savedReader) line(line string) error {
	switch {
	case strings.HasPrefix(line, ":"+r.prefix):
		name, _, _ := strings.Cut(line[1:], " ")
		r.declared[name] = true
	case strings.HasPrefix(line, "-A "):
		chain, rule, _ := strings.Cut(line[len("-A "):], " ")
		r.err = r.rule(chain, rule)
	case strings.HasPrefix(line, "# Table ") && strings.Contains(line, " is incompatible"):
		r.err = ErrIncompatible // a comment about "incompatible base-chains" is harmless, because such chains hide no rules of the built-in chains
	}
	return r.err
}

func (r *savedReader) rule(chain, rule string) error {
	if !strings.HasPrefix(chain, r.prefix) {
		if target := targetOf(rule); strings.HasPrefix(target, r.prefix) {
			r.leads = append(r.leads, Lead{Chain: chain, Rule: rule, Target: target})
		}
		return nil
	}
	if chain != r.chain {
		if err := r.flush(); err != nil {
			return err
		}
		if !r.declared[chain] {
			return fmt.Errorf("the rules of chain %s are listed in two places", chain)
		}
		r.chain = chain
	}
	r.rules = append(r.rules, rule)
	return nil
}

// flush calls visit for the chain whose rules were last read.
func (r *savedReader) flush() error {
	if r.chain == "" {
		return nil
	}
	chain, rules := r.chain, r.rules
	delete(r.declared, chain)
	r.chain, r.rules = "", nil
	return r.visit(chain, rules)
}

// end calls visit for the last chain, and for the chains without rules.
func (r *savedReader) end() error {
	if err := r.flush(); err != nil {
		return err
	}
	for chain := range r.declared {
		if err := r.visit(chain, nil); err != nil {
			return err
		}
	}
	return nil
}

// stream runs a program, and calls line for each line of its output until line returns an error.
func stream(ctx context.Context, line func(string) error, program string, args ...string) (stderr string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.WaitDelay = outputWait
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", fmt.Errorf("starting %s: %w", program, err)
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("starting %s: %w", program, err)
	}
	readErr := eachLine(out, line)
	if readErr != nil {
		cancel()
	}
	err = cmd.Wait()
	if readErr != nil {
		err = readErr
	}
	return said.String(), err
}

func eachLine(from io.Reader, line func(string) error) error {
	r := bufio.NewReaderSize(from, 64<<10)
	for {
		text, err := r.ReadString('\n')
		if text = strings.TrimRight(text, "\n "); text != "" {
			if err := line(text); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
